"""Step programs for the devices of a mesh, with what these may send each other.

Of a mesh that configs/compiled/collectives.yaml names, every exchange of hidden states is expected as often as it says
there; of others no exchange may be larger than hidden states are in float32. Of a mesh with stages, each stage's
programs are compiled for its devices.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from jaxinfer_kernels.check.cases import Case, Lowering
from jaxinfer_kernels.check.collectives import Exchange
from jaxinfer_kernels.check.command import RECORDS
from jaxinfer_kernels.check.targets import Target
from program_cases import model_cases
from program_models import DENSE, ODD, QUANTISED, QWEN3_MOE, Model
from stage_programs import stage_cases

from jaxinfer.config import ParallelConfig
from jaxinfer.errors import ParameterError
from jaxinfer.layers.dispatch import DISPATCH_FORMS, DispatchForm
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.asked_mesh import asked_mesh, served_mesh
from jaxinfer.parallel.mesh import platform_kind
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.mesh_file import shipped_meshes
from jaxinfer.plan.stand_in import BACKENDS
from jaxinfer.runner.programs.table import Name

_EXPECTED = RECORDS / "collectives.yaml"
_LAYERS = 2
_ANYWHERE = ("v6e", "h200")
"""Targets of meshes that are made for none."""
_ROW_NUMBERS = 32
"""Numbers of 4 bytes that a device may send of a row when it is sampled: 20 likely tokens, thresholds, sums."""
_FORWARD: tuple[Name, ...] = (("decode", 16), ("mixed", 192))
_SAMPLING: tuple[Name, ...] = (("sample", 256), ("multi_step", 16))
_MODELS: tuple[tuple[Model, tuple[Name, ...]], ...] = (
    (DENSE[1], _FORWARD),
    (QWEN3_MOE, _FORWARD[:1]),
    (QUANTISED[0], _FORWARD[:1]),
)
_WITH_ALL = ("tp8", "data2-tp4", "pp2-tp4")
"""Meshes whose samplers are compiled, too. Those of other shipped meshes differ only by the number of devices."""
_WITH_ODD = "tp8"


def mesh_names(asked: str) -> list[str]:
    """Meshes asked for. Raises ParameterError where one cannot be read."""
    names = list(shipped_meshes()) if asked == "all" else [asked]
    meshes = {name: asked_mesh(ParallelConfig(mesh=name)) for name in names}
    # Of a process the record knows a GPU's programs by their order: one more mesh of stages, or of hosts, moves no
    # others.
    return sorted(names, key=lambda name: (meshes[name].hosts > 1, meshes[name].stages > 1))


def mesh_cases(asked: str, target: Target, everything: bool) -> list[Case]:
    """asked: `all`, or a mesh as `jaxinfer serve --mesh` takes it. Meshes that a target has no topology for have no
    cases."""
    return [case for name in mesh_names(asked) if _fits(name, target) for case in _cases(name, target, everything)]


def _fits(name: str, target: Target) -> bool:
    topology = asked_mesh(ParallelConfig(mesh=name)).topology
    return target.name in _ANYWHERE if topology is None else target.name == topology.target


def _cases(name: str, target: Target, everything: bool) -> list[Case]:
    backend, title = BACKENDS[platform_kind(target.platform)][0], Path(name).stem
    mesh = asked_mesh(ParallelConfig(mesh=name))
    try:
        served_mesh(ParallelConfig(mesh=name), mesh.hosts)
    except ParameterError as error:
        return [Case("every program", title, _not_compiled, cannot=error.message)]
    layers = None if everything else _LAYERS
    found = []
    every = everything or title in _WITH_ALL or title not in shipped_meshes()
    for model, forward in (*_MODELS, *([(ODD, _FORWARD[:1])] if title == _WITH_ODD else [])):
        programs = (*forward, *_SAMPLING) if every and model is DENSE[1] else forward
        for form in _forms(mesh, model):
            options = {"mesh": mesh, "mesh_name": title, "form": form}
            options["exchange"] = partial(_exchange, title, mesh, model, form, target.platform)
            if mesh.stages > 1:
                del options["form"]
                found += stage_cases(target, model, layers, backend, programs, **options)
                continue
            found += model_cases(target, model, layers, backend, lambda _, these=programs: these, **options)
    return [case._replace(topology=_devices_of(mesh, target)) for case in found]


def _devices_of(mesh: MeshConfig, target: Target) -> str:
    """XLA's name of the devices of several hosts; empty for those of one."""
    if mesh.topology is None or mesh.hosts == 1:
        return ""
    kind, several, _ = target.topology.rpartition(":")
    return kind + several + "x".join(map(str, mesh.topology.shape))


def _forms(mesh: MeshConfig, model: Model) -> tuple[DispatchForm, ...]:
    """Return the forms in which rows may come to experts."""
    return DISPATCH_FORMS if model is QWEN3_MOE and mesh.shards("expert") > 1 else DISPATCH_FORMS[:1]


def _not_compiled(devices: Sequence[Any]) -> Lowering:
    """Stand in for the lowering of a program that is not compiled."""
    raise AssertionError("is not compiled")


def _exchange(
    title: str, mesh: MeshConfig, model: Model, form: DispatchForm, platform: str, config: DecoderConfig, name: Name
) -> Exchange:
    rows = name[1]
    numbers = rows * 4 * _ROW_NUMBERS * mesh.size if name[0] in ("sample", "multi_step") else 0
    known = yaml.safe_load(_EXPECTED.read_text()).get(title)
    if name[0] == "sample":
        return Exchange(small=numbers)
    if known is None:
        experts = config.layers[0].experts if form == "exchange" else None
        each = 1 if experts is None else experts.chosen
        return Exchange(small=max(numbers, rows * each * config.hidden_size * 4))
    hidden, once = f"bf16[{rows},{config.hidden_size}]", known["embedding"] if config.embeds else 0
    if model.quantization != "none":  # rows of the embedding are exchanged as they are held, codes and scales
        once, numbers = 0, max(numbers, rows * config.hidden_size)
    if mesh.data > 1 and model is QWEN3_MOE:  # tokens of each expert
        numbers = max(numbers, 4 * config.num_layers * QWEN3_MOE.fields["num_experts"])
    layers, each = config.num_layers, known["layer"]
    if form == "reduce":
        return Exchange(((f"all-reduce {hidden}", once + layers * each),), numbers)
    of_rows = _rows_exchanged(mesh, rows, platform, config)
    return Exchange(
        ((f"all-reduce {hidden}", once + layers * (each - 1)), *((one, layers) for one in of_rows)), numbers
    )


def _rows_exchanged(mesh: MeshConfig, rows: int, platform: str, config: DecoderConfig) -> Iterator[str]:
    """Yield the exchanges of a layer whose rows go to experts: there, room for all that a device may be sent; back,
    rows of its own; and the sums of all rows to all devices. XLA for a TPU cuts these in two its own way."""
    experts, devices, hidden = config.layers[0].experts, mesh.shards("expert"), config.hidden_size
    assert experts is not None
    own = rows // devices
    for room in (devices * own * min(experts.chosen, experts.slots // devices), own * experts.chosen):
        yield f"ragged-all-to-all bf16[{room},{f'2,{hidden // 2}' if platform == 'tpu' else hidden}]"
    yield f"all-gather bf16[{f'{rows // 2},2' if platform == 'tpu' else rows},{hidden}]"
