"""Figures of chips, against the targets that programs are compiled for."""

import pytest
import yaml

from jaxinfer.errors import ParameterError
from jaxinfer.parallel.topology import TARGETS
from jaxinfer.plan.chip import chip_files, read_chip
from tests.material import REPOSITORY

COMPILED = {file.stem: yaml.safe_load(file.read_text()) for file in (REPOSITORY / "configs/targets").glob("*.yaml")}
NAMES = {"bfloat16": "bf16", "int8": "int8", "float8": "fp8"}


@pytest.mark.parametrize("name", COMPILED)
def test_a_chip_is_as_many_devices_as_programs_are_compiled_for(name: str) -> None:
    chip, device = read_chip(name), COMPILED[name]
    assert chip.memory.bytes == chip.devices * device["hbm_bytes"]
    assert chip.memory.bytes_per_second == chip.devices * device["hbm_bytes_per_second"]
    for kind, short in NAMES.items():
        known = device.get(f"{short}_ops_per_second")
        assert chip.ops_per_second.get(kind) == (None if known is None else chip.devices * known)


def test_chips_are_those_of_topologies() -> None:
    assert {*chip_files(), "cpu"} == set(TARGETS)


@pytest.mark.parametrize("name", chip_files())
def test_every_figure_has_a_source(name: str) -> None:
    chip = read_chip(name)
    assert chip.devices == TARGETS[name].chip_devices
    assert chip.platform == TARGETS[name].platform
    assert all(len(text) > 10 for text in (chip.memory.source, chip.ops_source, chip.links.source, chip.network.source))
    assert (chip.links.joined > 0) == (chip.links.shape == "torus")


def test_an_unknown_chip_is_told_with_those_that_are_known() -> None:
    with pytest.raises(ParameterError, match="chip: 'v9' is no chip that is known; there are a100, b200, h100"):
        read_chip("v9")
