"""What a config.json leaves out means what transformers' config class takes it for, in every family that it has.

A file is read twice: as it stands, and as transformers' class writes it out with all of its values. Ends of sequences
are left aside: those of generation_config.json count beside them, and a class's own may be any token of the model.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from jaxinfer.errors import ModelError, UnknownArchitectureError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.registry import ARCHITECTURES, parse_config
from tests.material import material

pytestmark = pytest.mark.parity

Raw = dict[str, Any]
OF_TRANSFORMERS = [
    name
    for name, found in ARCHITECTURES.items()
    if found.checked_against.startswith("transformers") and name != "Phi3VForCausalLM"  # which has no class there
]
SIZES = {"hidden_size": 1536, "num_attention_heads": 96, "num_hidden_layers": 30, "vocab_size": 1000}
"""Those of no class, and such that 16 channels a head are none's default."""
NEEDED = {"granitemoehybrid": {"layer_types": ["attention"] * 30}}
"""Without them transformers' class makes all layers Mamba's."""
OTHER_NAMES = {"num_experts": "num_local_experts"}
ENDS = ("bos_token_id", "eos_token_id")


def config_classes() -> Any:
    """By their model_type."""
    return pytest.importorskip("transformers", reason="the parity extra is not installed").CONFIG_MAPPING


def without(raw: Raw, *names: str) -> Raw:
    return {name: value for name, value in raw.items() if name not in names}


def written_out(kind: str, raw: Raw) -> Raw:
    """What transformers reads in a file, all of it. Raises KeyError for a rotary embedding that lacks what it needs."""
    return without(json.loads(json.dumps(config_classes()[kind].from_dict(dict(raw)).to_dict())), *ENDS)


def absences(raw: Raw) -> Iterator[tuple[str, Raw]]:
    """The file without each of its fields, and without each field of its rotary embedding but the type."""
    for name in raw:
        yield name, without(raw, name)
    rope = raw.get("rope_parameters") or {}
    for name, value in without(rope, "rope_type").items():
        yield f"rope_parameters.{name}", {**raw, "rope_parameters": without(rope, name)}
        for inner in value if isinstance(value, dict) else ():
            yield f"rope_parameters.{name}.{inner}", {**raw, "rope_parameters": {**rope, name: without(value, inner)}}


def read(raw: Raw, architecture: str) -> DecoderConfig | str:
    """The decoder, or the name of a field that is missing."""
    try:
        return parse_config(raw, architecture)
    except ModelError as error:
        missing = re.search(r"(\w+) is missing", str(error))
        if missing is None:
            raise
        return missing[1]


@pytest.mark.parametrize("architecture", OF_TRANSFORMERS)
def test_a_field_that_is_absent(architecture: str) -> None:
    (kind,) = ARCHITECTURES[architecture].model_types
    for name, raw in absences(written_out(kind, {**SIZES, **NEEDED.get(kind, {})})):
        found = read(raw, architecture)
        if isinstance(found, str):
            assert name.split(".")[-1] in (found, OTHER_NAMES.get(found))
            continue
        with contextlib.suppress(KeyError):
            assert found == read(written_out(kind, raw), architecture), name


@pytest.mark.parametrize("architecture", OF_TRANSFORMERS)
def test_the_smallest_file_that_loads(architecture: str) -> None:
    (kind,) = ARCHITECTURES[architecture].model_types
    whole, raw = written_out(kind, {**SIZES, **NEEDED.get(kind, {})}), Raw()
    while isinstance(found := read(raw, architecture), str):
        name = found if found in whole else OTHER_NAMES[found]
        assert name not in raw
        raw[name] = whole[name]
    assert found == read(whole, architecture), raw


@pytest.mark.parametrize("architecture", [name for name in OF_TRANSFORMERS if ARCHITECTURES[name].defaults])
def test_a_text_part_that_says_nothing(architecture: str) -> None:
    found = ARCHITECTURES[architecture]
    (kind,) = found.model_types
    outside = {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": kind}}
    written = config_classes()[kind]().to_dict()
    assert parse_config(outside).layers == parse_config(written, architecture).layers
    assert {name: written[name] for name in found.defaults} == found.defaults


def test_real_files() -> None:
    compared = 0
    for path in sorted(material("configs").glob("*.json")):
        raw = without(json.loads(path.read_text()), *ENDS)
        try:
            found = parse_config(raw)
        except UnknownArchitectureError:
            continue
        kind = raw.get("model_type", "")
        if kind in config_classes():
            compared += 1
            assert found == parse_config(written_out(kind, raw)), path.name
    assert compared >= 50
