"""Compiles the engine's step programs for TPUs and GPUs on a machine that has none, and fails where one would copy KV
blocks or weights: `.venv/bin/python scripts/check_programs.py [--mesh FILE|all] [--targets v6e,h200] [--all]`.

Programs are those of the engine's own `Programs`, over models without values. By default they have a layer of each kind
that a model has, or two, and some are not compiled for every kind of TPU; `--all` takes every layer, bucket and
program. `--mesh` compiles for the devices of a mesh, and fails where they would send each other anything but what
configs/compiled/collectives.yaml expects of it; `all` takes every mesh that is shipped. Of a pipeline the programs are
those of its stages, each for its own devices; one that would hand over anything but hidden states fails. Needs the
extras compile-tpu and compile-gpu, as `python -m jaxinfer_kernels.check` does, whose table this is.
"""

import argparse
import sys
from functools import partial

from jaxinfer_kernels import unavailable
from jaxinfer_kernels.check.cases import Case
from jaxinfer_kernels.check.command import RECORDS, main
from jaxinfer_kernels.check.targets import Target
from mesh_programs import mesh_cases, mesh_names
from program_cases import drafted_shapes, drafting_shapes, fitting_shapes, model_cases
from program_models import DENSE, EXPERTS, FAMILIES, FITTING, QUANTISED

from jaxinfer.engine.step.buckets import make_buckets
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.parallel.mesh import platform_kind
from jaxinfer.plan.stand_in import BACKENDS
from jaxinfer.runner.programs.table import Name

_SMALL = 8
_FEW_LAYERS = 2
# Without a kernel of ours, programs differ little between TPUs; the largest takes minutes to compile.
_LEFT_OUT = {"v5e": ("admit", "sample", "mixed"), "v5p": ("admit", "sample", "mixed"), "v7x": ("admit", "sample")}
_FAMILY_TARGETS = ("v6e", "h200")
_QUANTISED_TARGETS = ("v5e", "v6e", "h200")
# NOTE: with int4 in groups of 32 the TPU's quantised_matmul spills on a v6e, at 430 of 1404 bundles.
_DECODE_ALONE = {"v6e": ("int4",)}
# Larger ones take minutes (gpt-oss, mixed 1920: almost five for a v6e). No activation has a weight's size.
_FAMILY_PROGRAMS: tuple[Name, ...] = (("decode", 16), ("mixed", 192))


def program_cases(target: Target, everything: bool) -> list[Case]:
    """Programs of every model, for one device of the target."""
    first, *others = (backend for backend in BACKENDS[platform_kind(target.platform)] if not unavailable(backend))
    if everything:
        models = (*DENSE, *FAMILIES, *QUANTISED)
        cases = [case for model in models for case in model_cases(target, model, None, first, every_name)]
    else:
        cases = model_cases(target, DENSE[0], _FEW_LAYERS, first, partial(_some_names, target))
        # The second has larger weights. Its admit and sample follow slots and the vocabulary, as the first's do; its
        # mixed program takes minutes to compile for a TPU.
        cases += model_cases(target, DENSE[1], _FEW_LAYERS, first, lambda shapes: _largest_forward(shapes)[:1])
        cases += model_cases(target, DENSE[0], _FEW_LAYERS, first, _drafting, drafting_shapes)
    for model in EXPERTS:
        for backend in (first, *others):
            cases += model_cases(target, model, 1, backend, lambda shapes: [("decode", make_buckets(shapes).rows[0])])
    for other in others:
        cases += model_cases(target, DENSE[0], _FEW_LAYERS, other, _largest_forward)
    if not everything and target.name in _FAMILY_TARGETS:
        for model in FAMILIES:
            cases += model_cases(target, model, 1, first, lambda _: _FAMILY_PROGRAMS)
        names: list[Name] = [("speculate", _SMALL), ("copies", 0)]
        cases += model_cases(target, DENSE[1], 1, first, lambda _: names, drafted_shapes, draft=DENSE[0])
    if not everything and target.name in _QUANTISED_TARGETS:
        cases += _quantised_cases(target, first)
    if target.name in FITTING:
        for model in FITTING[target.name]:
            cases += model_cases(target, model, None, first, _largest_forward, fitting_shapes)
    return cases


def _quantised_cases(target: Target, backend: str) -> list[Case]:
    cases = []
    for model in QUANTISED:
        if model not in FITTING.get(target.name, ()):
            names = _FAMILY_PROGRAMS[: 1 if model.quantization in _DECODE_ALONE.get(target.name, ()) else None]
            cases += model_cases(target, model, 1, backend, lambda _, names=names: names)
    return cases


def _some_names(target: Target, shapes: EngineShapes) -> list[Name]:
    buckets = make_buckets(shapes)
    small: list[Name] = [("admit", 0), ("copies", 0), ("decode", _SMALL), ("multi_step", _SMALL)]
    names = [*small, *_largest_forward(shapes), ("sample", buckets.scored[-1])]
    return [name for name in names if name[0] not in _LEFT_OUT.get(target.name, ())]


def _largest_forward(shapes: EngineShapes) -> list[Name]:
    buckets = make_buckets(shapes)
    return [("decode", buckets.rows[-1]), ("mixed", buckets.tokens[-1])]


def _drafting(shapes: EngineShapes) -> list[Name]:
    """`verify` and `accept` are the halves of `speculate`."""
    return [("draft", _SMALL), ("speculate", _SMALL), ("speculate", make_buckets(shapes).rows[-1])]


def every_name(shapes: EngineShapes) -> list[Name]:
    """Every program that an engine of these shapes has but those that draft."""
    buckets = make_buckets(shapes)
    forward = [("mixed", tokens) for tokens in buckets.tokens] + [("decode", rows) for rows in buckets.rows]
    multi_step: Name = ("multi_step", buckets.rows[-1])
    return [("admit", 0), ("copies", 0), *forward, multi_step, *(("sample", scored) for scored in buckets.scored)]


def run(again: list[str]) -> int:
    """The command; again: what starts it once more, as `jaxinfer_kernels.check.command.main` wants it."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--mesh")
    asked, others = parser.parse_known_args()
    if asked.mesh is None:
        record = RECORDS / "programs.json"
        return main(program_cases, again, description=__doc__ or "", record=record, arguments=others)
    try:
        mesh_names(asked.mesh)
    except ParameterError as error:
        print(error, file=sys.stderr)
        return 1
    again += ["--mesh", asked.mesh]
    source, record = partial(mesh_cases, asked.mesh), RECORDS / "meshes.json"
    return main(source, again, description=__doc__ or "", record=record, arguments=others, hosts=True)


if __name__ == "__main__":
    sys.exit(run([sys.executable, __file__]))
