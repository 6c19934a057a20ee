"""`jaxinfer plan`: what a model takes of meshes that need not be here, and how fast they could be. Reads no weights."""

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import tyro

from jaxinfer.cli.flags import parse_flags
from jaxinfer.cli.json_output import show_json
from jaxinfer.config import (
    CacheConfig,
    DType,
    EngineConfig,
    KVCacheDType,
    ModelConfig,
    ParallelConfig,
    Quantization,
    SchedulerConfig,
)
from jaxinfer.errors import ParameterError, quoted
from jaxinfer.parallel.asked_mesh import asked_mesh, check_served

if TYPE_CHECKING:
    from jaxinfer.build.declared import DeclaredModel
    from jaxinfer.model_config.decoder_config import DecoderConfig
    from jaxinfer.parallel.mesh_config import MeshConfig
    from jaxinfer.plan.chip import Chip
    from jaxinfer.plan.compilation import Compilation
    from jaxinfer.plan.drafting import Assumed
    from jaxinfer.plan.estimate import MeshPlan
    from jaxinfer.plan.report import Question, Report
    from jaxinfer.plan.search import Sweep
    from jaxinfer.plan.service import Workload


_MOST = 10**6
_ACCEPTANCE = 0.7
"""Share of drafts that are kept, if no other is assumed."""
_TOKENS = 1024
"""Tokens of a request, in and out, if no others are asked for."""


class _Asked(NamedTuple):
    """Values of the flags."""

    mesh: tuple[str, ...]
    chip: str | None
    calibration: Path | None
    config: EngineConfig
    workload: str | None
    question: "Question"
    sweep: int | None
    fit: bool
    expert_imbalance: float
    compile: bool
    explain: bool
    json: bool
    html: Path | None
    emit: Path | None
    device_model: Path | None
    draft_acceptance: float | None
    assumed: "Assumed | None" = None


def run(arguments: Sequence[str]) -> int:
    """Prints a table; `--json` prints it for programs."""
    asked: _Asked = parse_flags(_flags, "plan", arguments)
    from jaxinfer.build.declared import declare_alone
    from jaxinfer.plan.device_table import device_table
    from jaxinfer.plan.page import page
    from jaxinfer.plan.report import report, table, values

    for flag, file in (("html", asked.html), ("emit", asked.emit), ("device_model", asked.device_model)):
        if file is not None and not os.access(file.parent, os.W_OK):
            raise ParameterError(flag, f"{file} cannot be written: its folder is not there, or not this user's")
    declared = declare_alone(asked.config)
    asked = asked._replace(question=asked.question._replace(workload=_workload(asked, declared.config)))
    decoder = declared.held(asked.config)
    asked = asked._replace(assumed=_assumed(asked, decoder))
    found = _plans(asked, decoder)
    compiled = _compile(asked, decoder, found.plans) if asked.compile else []
    fits_with = partial(_remedies, asked, declared)
    told = report(
        asked.config.model, declared.architecture, found.plans, asked.question, fits_with, found.left_out, compiled
    )
    if asked.html is not None:
        _write("html", asked.html, page(told))
    if asked.emit is not None:
        _emit(asked.emit, _best("emit", told))
    if asked.device_model is not None:
        steps = device_table(_best("device_model", told))
        _write("device_model", asked.device_model, json.dumps(steps, indent=1))
    if asked.json:
        show_json(values(told))
    else:
        print("\n".join(table(told, explain=asked.explain)))
    return 0


def _flags(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[MODEL]")] = "demo",
    mesh: tuple[str, ...] = (),
    sweep: int | None = None,
    fit: bool = False,
    chip: str | None = None,
    calibration: Path | None = None,
    pipeline_layers: str | None = None,
    dtype: DType = "auto",
    architecture: str | None = None,
    ignore_config_keys: tuple[str, ...] = (),
    quantization: Quantization = "none",
    kv_cache_dtype: KVCacheDType = "auto",
    block_size: int | None = None,
    gpu_memory_utilization: float = 0.9,
    context: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    batch: int = 32,
    workload: str | None = None,
    itl: float | None = None,
    ttft: float | None = None,
    price: float | None = None,
    expert_imbalance: float = 1.0,
    compile: bool = True,
    explain: bool = False,
    json: bool = False,
    html: Path | None = None,
    emit: Path | None = None,
    device_model: Path | None = None,
    speculative_config: str | None = None,
    draft_acceptance: float | None = None,
) -> _Asked:
    """Say what a model takes of meshes that need not be here, and how fast they could be.

    Times are of memory, products and links at their peak rates, or as a machine measured them: an engine takes longer.

    Args:
        model: A folder, a hub id `owner/name`, a config.json, or `demo`, the model in the package.
        mesh: Meshes by name, as tp4, or YAML files.
        sweep: Every way to use so many devices of `--chip`.
        fit: The fewest devices of `--chip`, a power of two along `tensor`, that hold the model and one request.
        chip: Kind of chip for meshes that name none: a file of configs/chips, as v6e or h200.
        calibration: What a machine measured of itself, in place of a chip's peaks; names the chip. A file, from
            benchmarks/calibrate.py, or h100, which is shipped.
        pipeline_layers: Layers of each stage of meshes that have some, as 0-14,15-31; by default every stage's step
            takes about as long.
        dtype: Type of weights and activations; auto: bfloat16, on a CPU float32.
        architecture: Read config.json as that of this architecture, whatever it names.
        ignore_config_keys: Unknown keys of config.json that are ignored, whatever their names suggest.
        quantization: How the weights are held.
        kv_cache_dtype: Type of keys and values in KV blocks; auto: that of activations.
        block_size: Tokens a KV block; by default 64 on GPU, 128 on TPU.
        gpu_memory_utilization: Share of a device's memory that everything together may take.
        context: Tokens of the longest sequence; by default what the model declares.
        max_num_seqs: Most sequences at once; by default as `serve` chooses, or the batch where that is above 256.
        max_num_batched_tokens: Most tokens a step; by default as `serve` chooses.
        batch: Requests under way, at most.
        workload: Tokens of a request, IN,OUT or IN,OUT,RATE; by default 1024,1024, or half of the context each. RATE:
            requests a second, of which a mesh has as few under way as answer them all.
        itl: Milliseconds between two tokens, at most: as many requests as keep within it.
        ttft: Milliseconds until the first token, at most.
        price: Of a chip for an hour: adds what a million tokens of output cost.
        expert_imbalance: Tokens of the busiest device's experts over the mean, where devices have whole experts.
        compile: Compile the programs of meshes that --mesh names, where their compiler is installed: memory is what it
            tells, and the rest is compared with it. Minutes for a large model; what was compiled before is kept.
        explain: Print every part of a step, and of a device's memory.
        json: Print JSON.
        html: A file for a page with pictures, which loads nothing.
        emit: A file for the mesh with most tokens a chip, as `serve --mesh` takes it.
        device_model: A JSON file for seconds of steps by their size on that mesh, for simulations.
        speculative_config: Who drafts, as `serve` takes it: {"model": FOLDER, "num_speculative_tokens": 4}; a model may
            be a config.json.
        draft_acceptance: Of drafts that come after kept ones, how many are kept: 0 to 1, by default 0.7.
    """
    from jaxinfer.plan.report import Question
    from jaxinfer.plan.search import MOST_DEVICES, Limits
    from jaxinfer.plan.service import Workload

    if not mesh and sweep is None and not fit:
        if chip is None and calibration is None:
            raise ParameterError(
                "mesh", "is missing; give one, or --chip for one device, with --sweep or --fit for more"
            )
        mesh = ("single",)
    if emit is not None and emit.suffix not in (".yaml", ".yml"):
        raise ParameterError("emit", f"{emit} must end in .yaml, as --mesh takes files")
    if sweep is not None and not 1 <= sweep <= MOST_DEVICES:
        raise ParameterError("sweep", f"must be from 1 to {MOST_DEVICES}, not {sweep}")
    for name, value in (("batch", batch), ("expert_imbalance", expert_imbalance)):
        if not 1 <= value < _MOST:
            raise ParameterError(name, f"must be at least 1, and less than {_MOST:,}, not {value}")
    for name, value in (("itl", itl), ("ttft", ttft), ("price", price)):
        if value is not None and not 0 < value < _MOST:
            raise ParameterError(name, f"must be above 0, and less than {_MOST:,}, not {value}")
    limits = Limits(*(None if value is None else value / 1e3 for value in (ttft, itl)))
    if draft_acceptance is not None and speculative_config is None:
        raise ParameterError("draft_acceptance", "means nothing without --speculative-config")
    if draft_acceptance is not None and not 0 <= draft_acceptance <= 1:
        raise ParameterError("draft_acceptance", f"must be from 0 to 1, not {draft_acceptance}")
    if context is not None and context < 2:
        raise ParameterError("context", f"must be at least 2, not {context}")
    config = EngineConfig(
        model,
        load=ModelConfig(
            dtype=dtype,
            architecture=architecture,
            max_model_len=context,
            ignore_config_keys=ignore_config_keys,
            quantization=quantization,
        ),
        cache=CacheConfig(
            kv_cache_dtype=kv_cache_dtype, block_size=block_size, gpu_memory_utilization=gpu_memory_utilization
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=_slots(batch) if max_num_seqs is None else max_num_seqs,
            max_num_batched_tokens="auto" if max_num_batched_tokens is None else max_num_batched_tokens,
            speculative_config=speculative_config,
        ),
        parallel=ParallelConfig(pipeline_layers=pipeline_layers),
    )
    return _Asked(
        *(mesh, chip, calibration, config, workload, Question(Workload(1, 1), batch, limits, price)),
        *(sweep, fit, expert_imbalance, compile, explain, json, html, emit, device_model, draft_acceptance),
    )


def _write(flag: str, file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise ParameterError(flag, f"{file} cannot be written: {error.strerror}") from None


def _best(flag: str, told: "Report") -> "MeshPlan":
    """The mesh with most tokens a chip, of those that engines serve and the requests fit on."""
    from jaxinfer.plan.report import best_of

    served = best_of([mesh for mesh in told.meshes if not mesh.plan.refused])
    if not served:
        raise ParameterError(flag, "no mesh here serves the requests within the limits")
    return max(served, key=lambda one: one[1].tokens_per_second_per_chip)[0].plan


def _emit(file: Path, best: "MeshPlan") -> None:
    """The chips are named where they are all of a slice."""
    from jaxinfer.parallel.mesh_file import mesh_text

    mesh, whole = best.mesh, best.topology.devices == best.mesh.size
    _write("emit", file, mesh_text(replace(mesh, topology=best.topology if whole else None)))


def _slots(batch: int) -> int | Literal["auto"]:
    from jaxinfer.runner.fit.sizes import MOST_SLOTS

    return "auto" if batch <= MOST_SLOTS else batch


def _plans(asked: _Asked, decoder: "DecoderConfig") -> "Sweep":
    from jaxinfer.plan.search import Sweep, smallest, sweep

    found = Sweep([_named(asked, decoder, name) for name in asked.mesh], {})
    layers = asked.config.parallel.pipeline_layers
    if layers is not None and not any(plan.stages for plan in found.plans):
        raise ParameterError("pipeline_layers", f"{layers}: no mesh here has stages; give one with --mesh")
    planner = partial(_planned, asked, decoder)
    if asked.sweep is not None:
        swept = sweep(asked.sweep, planner, has_experts=bool(decoder.expert_layers))
        found = Sweep([*found.plans, *swept.plans], swept.left_out)
    if asked.fit:
        workload = asked.question.workload
        found.plans.append(smallest(planner, workload.tokens_in + workload.tokens_out))
    return found


def _compile(asked: _Asked, decoder: "DecoderConfig", plans: "list[MeshPlan]") -> "list[Compilation | str]":
    """Compile the plans of the meshes that were named, which come first. Compilers' figures replace those of the
    plans."""
    from jaxinfer.plan.compilation import compile_plan, obstacle
    from jaxinfer.plan.compiling import Bounds

    found: list[Compilation | str] = []
    for number, plan in enumerate(plans[: len(asked.mesh)]):
        if (reason := obstacle(plan)) is not None:
            found.append(reason)
            continue
        tell = partial(print, file=sys.stderr, flush=True)
        again = partial(_planned, asked, decoder, plan.mesh, plan.name)
        plans[number], compiled = compile_plan(plan, asked.question.batch, Bounds(), again, tell)
        found.append(compiled)
    return found


def _named(asked: _Asked, decoder: "DecoderConfig", name: str) -> "MeshPlan":
    """A file's, or a shipped mesh's."""
    title = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    mesh = asked_mesh(ParallelConfig(mesh=name))
    try:
        return _planned(asked, decoder, mesh, title)
    except ParameterError as error:
        message = f"{title}: {error.message}" if error.param == "mesh" else error.message
        raise ParameterError(error.param, message) from None


def _remedies(asked: _Asked, declared: "DeclaredModel", plan: "MeshPlan") -> list[str]:
    """Fewer bits for the weights, or twice as many devices along `tensor`."""
    from jaxinfer.plan.estimate import plan_mesh
    from jaxinfer.plan.search import first_that_holds

    def planned(quantization: str, tensor: int) -> "MeshPlan":
        axes = {**plan.mesh.axes, "tensor": tensor}
        mesh = plan.mesh if tensor == here else replace(plan.mesh, axes=axes, topology=None)
        config = replace(asked.config, load=replace(asked.config.load, quantization=quantization))
        told: dict[str, Any] = {"imbalance": asked.expert_imbalance, "assumed": asked.assumed}
        return plan_mesh(config, declared.held(config), mesh, plan.name, plan.chip, **told)

    own, work = asked.config.load.quantization, asked.question.workload
    here = plan.mesh.axes.get("tensor", 1)
    fewer = [name for name in ("int8", "int4") if own == "none"]
    bits = [(f"--quantization {name}", partial(planned, name, here)) for name in fewer]
    more = [(f"tensor={size}", partial(planned, own, size)) for size in (2 * here, 4 * here, 8 * here)]
    return [name for ways in (bits, more) for name in first_that_holds(ways, work.tokens_in + work.tokens_out)]


def _planned(
    asked: _Asked, decoder: "DecoderConfig", mesh: "MeshConfig", name: str, temporaries: int | None = None
) -> "MeshPlan":
    from jaxinfer.plan.estimate import plan_mesh

    told: dict[str, Any] = {"imbalance": asked.expert_imbalance, "temporaries": temporaries, "assumed": asked.assumed}
    plan = plan_mesh(asked.config, decoder, mesh, name, _chip(asked, mesh, name), **told)
    try:
        placed = replace(mesh, topology=plan.topology) if plan.topology.devices == mesh.size else mesh
        check_served(placed, placed.hosts)
    except ParameterError as error:
        return replace(plan, refused=error.message)
    return plan


def _chip(asked: _Asked, mesh: "MeshConfig", name: str) -> "Chip":
    """Return the chip of the mesh, or of the flags, with measured figures if there are any."""
    from jaxinfer.plan.calibration import read_calibration
    from jaxinfer.plan.chip import chip_files, read_chip

    measured = None if asked.calibration is None else read_calibration(asked.calibration)
    if measured is not None and asked.chip not in (None, measured.name):
        raise ParameterError("calibration", f"{asked.calibration} is of {measured.name}, not of {asked.chip}")
    chip = (asked.chip or (measured and measured.name)) if mesh.topology is None else mesh.topology.target
    if chip is None:
        raise ParameterError("chip", f"mesh {name} names no chips; give --chip with one of {', '.join(chip_files())}")
    if measured is not None:
        if chip != measured.name:
            message = f"{asked.calibration} is of {measured.name}, and mesh {name} is made for {chip}"
            raise ParameterError("calibration", message)
        return measured
    if chip == "cpu":
        message = "a CPU's figures are its own: --calibration FILE has them, as benchmarks/calibrate.py writes it"
        raise ParameterError("chip", message)
    return read_chip(chip)


def _assumed(asked: _Asked, decoder: "DecoderConfig") -> "Assumed | None":
    """Return the assumptions on drafting; None if nothing drafts."""
    from jaxinfer.build.drafting import drafts_alone
    from jaxinfer.plan.drafting import Assumed
    from jaxinfer.runner.fit.sizes import context_of
    from jaxinfer.speculation import read_speculation

    drafting = read_speculation(asked.config.scheduler.speculative_config)
    if drafting is None:
        return None
    acceptance = _ACCEPTANCE if asked.draft_acceptance is None else asked.draft_acceptance
    return Assumed(drafts_alone(drafting, decoder, context_of(asked.config, decoder)), acceptance)


def _workload(asked: _Asked, decoder: "DecoderConfig") -> "Workload":
    from jaxinfer.plan.service import Workload
    from jaxinfer.runner.fit.sizes import context_of

    try:
        context = context_of(asked.config, decoder)
    except ParameterError as error:
        raise ParameterError("context", error.message) from None
    if asked.workload is None:
        return Workload(*(min(_TOKENS, context // 2),) * 2)
    words = asked.workload.split(",")
    counts, rate = words[:2], _rate(words[2]) if len(words) > 2 else None
    whole = len(counts) == 2 and all(word.isascii() and word.isdigit() and 0 < int(word) < 2**31 for word in counts)
    if not whole or len(words) > 3 or rate == 0:
        message = f"{quoted(asked.workload)} must be IN,OUT or IN,OUT,RATE: tokens of a request, from 1, and requests"
        raise ParameterError("workload", f"{message} a second, above 0, as 1024,256 or 1024,256,2.5")
    workload = Workload(int(counts[0]), int(counts[1]), rate)
    if sum(workload[:2]) > context:
        message = f"{asked.workload}: {sum(workload[:2]):,} tokens are more than the context, {context:,}"
        raise ParameterError("workload", message)
    return workload


def _rate(word: str) -> float:
    """0 where it is no rate."""
    return float(word) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", word) else 0.0
