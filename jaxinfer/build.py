"""Puts an engine together from a config tree: weights, block count, programs, scheduler.

This is the only place where the engine meets a device; jax is imported when it is called.
"""

import logging
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from jaxinfer import heap
from jaxinfer.config import AttentionBackend, EngineConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.recording import RecordingRunner
from jaxinfer.engine.device.runner import Runner
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.engine.types import ModelInfo
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.hosts.team import ALONE, Team
from jaxinfer.parallel.asked_mesh import served_mesh
from jaxinfer.parallel.auto_mesh import choose_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.quantization.kv import KV_CODES
from jaxinfer.speculation import read_speculation
from jaxinfer.text import TextProcessor
from jaxinfer.text.tokenizer import MAX_PROMPT_CHARS, Tokenizer

if TYPE_CHECKING:
    import jax.numpy as jnp

    from jaxinfer.layers.stack import Layout
    from jaxinfer.model_config.decoder_config import DecoderConfig
    from jaxinfer.models.loaded import LoadedModel
    from jaxinfer.parallel.layer_split import Spans
    from jaxinfer.runner.compile_cache import CompileCache
    from jaxinfer.runner.jax_runner import JaxRunner
    from jaxinfer.runner.pipeline.stage import StagedModel
    from jaxinfer.runner.xla_options import Options

log = logging.getLogger(__name__)

DEMO_FOLDER = Path(__file__).parent / "demo"


class BuildProgress(Protocol):
    """Told how far an engine under construction is."""

    def sized(self, sizes: str) -> None:
        """Receive a line on the chosen type, backend and sizes."""

    def loaded(self, done: int, total: int) -> None:
        """Bytes of weights on the device so far, and in all."""

    def compiled(self, program: str, done: int, total: int, seconds: float, cached: bool) -> None:
        """A program was made in so many seconds, `cached`: read from the cache; how many are done, and how many."""


class BuildSeconds(NamedTuple):
    """Seconds that each part of building took.

    plan: reading configuration, finding the device. fit: the attention backend and the number of blocks. tracing: the
    part of making programs that one thread does alone; compile: the rest of it, beside and after tracing.
    """

    imports: float = 0.0
    plan: float = 0.0
    load: float = 0.0
    fit: float = 0.0
    tracing: float = 0.0
    compile: float = 0.0
    warm_up: float = 0.0

    def __str__(self) -> str:
        return f"{sum(self):.2f} s: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._asdict().items())


class BuiltEngine(NamedTuple):
    """An engine that is ready to serve. folder holds the model's tokenizer and generation files."""

    core: EngineCore
    folder: Path
    seconds: BuildSeconds = BuildSeconds()


def model_folder(config: EngineConfig) -> Path:
    """The local folder of the model, fetched from the hub where it is named so. Raises ModelError."""
    return _folder(config.model, config.load.revision, "config.json")


def _folder(name: str, revision: str | None, needs: str) -> Path:
    from jaxinfer.checkpoint.source import DEMO_DRAFTERS, DEMO_NAME, resolve

    if name in (DEMO_NAME, *DEMO_DRAFTERS):
        return DEMO_FOLDER.parent / name
    return resolve(name, revision, needs=needs)


def _draft_folder(config: EngineConfig) -> Path | None:
    """The folder of the model that drafts; None where none does. Raises ModelError, for one whose tokens are not the
    model's too."""
    asked = read_speculation(config.scheduler.speculative_config)
    if asked is None or asked.model is None:
        return None
    folder, own = _folder(asked.model, None, "config.json"), config.load.tokenizer
    tokens = _folder(config.model if own is None else own, config.load.revision if own is None else None, "config.json")
    pair = [Tokenizer(one) for one in (tokens, folder) if (one / "tokenizer.json").is_file()]
    if len(pair) == 2 and pair[0].digest != pair[1].digest:
        raise ModelError(
            f"{asked.model} cannot draft for {config.model}: its tokens are not the same. Take a draft model of the "
            "same family, or method ngram"
        )
    return folder


def load_text(
    config: EngineConfig, *, max_chars: int = MAX_PROMPT_CHARS, control_tokens_in_content: bool = False
) -> TextProcessor:
    """The model's text side: its own tokenizer and chat template, or those that the settings name.

    max_chars: characters of one prompt. control_tokens_in_content: of TextProcessor. Raises ModelError.
    """
    return TextProcessor.from_folder(
        model_folder(config),
        tokenizer=_tokenizer_folder(config),
        max_chars=max_chars,
        control_tokens_in_content=control_tokens_in_content,
        chat_template=config.load.chat_template,
        default_chat_template_kwargs=config.load.template_kwargs,
    )


def _tokenizer_folder(config: EngineConfig) -> Path:
    other = config.load.tokenizer
    return model_folder(config) if other is None else _folder(other, None, "tokenizer.json")


def build_engine(config: EngineConfig, progress: BuildProgress | None = None, team: Team | None = None) -> BuiltEngine:
    """Loads the model and compiles its programs. Raises ModelError or ParameterError for what cannot be served.

    team: of the host that schedules; None: settings that ask for several hosts are refused.
    """
    if team is None and config.hosts.coordinator is not None:
        raise ParameterError("coordinator", "several hosts are joined by `jaxinfer serve`; leave it out")
    team = team or ALONE
    laps = _Laps()
    made = _make(config, progress, team, laps, leads=True)
    from jaxinfer.runner.pipeline.fitting import costs_of_stages  # which imports jax: after `prepare`

    constraints = made.constraints
    if constraints is not None:
        constraints.wait_ready()
    core = EngineCore(
        _recorded(team.leading(made.runner), config.runner.fault_folder),
        made.info,
        scheduler=config.scheduler,
        cache=config.cache,
        eos_ids=made.eos_token_ids,
        seed=seed_of(config),
        costs=costs_of_stages(made.model),
        constraints=constraints,
        hosts=team.readings,
    )
    seconds = laps.seconds(*made.runner.making_seconds)
    log.info("engine built in %s", seconds)
    return BuiltEngine(core, made.folder, seconds)


def _recorded(runner: Runner, folder: str | None) -> Runner:
    return runner if folder is None else RecordingRunner(runner, Path(folder))


def build_follower(config: EngineConfig, team: Team, progress: BuildProgress | None = None) -> Runner:
    """The runner of a host that does not schedule. Raises what `build_engine` raises."""
    return _make(config, progress, team, _Laps(), leads=False).runner


class _Made(NamedTuple):
    """Parts of an engine that every host has."""

    runner: "JaxRunner"
    model: "StagedModel"
    info: ModelInfo
    folder: Path
    eos_token_ids: tuple[int, ...]
    constraints: Grammars | None


def _make(config: EngineConfig, progress: BuildProgress | None, team: Team, laps: "_Laps", *, leads: bool) -> _Made:
    from jaxinfer.runner.xla_options import prepare

    asked = served_mesh(config.parallel, team.num_hosts)
    prepare(config)
    from jaxinfer.models.declared import read_declared
    from jaxinfer.models.eagle3_checkpoint import declared_eagle3, load_eagle3
    from jaxinfer.models.loaded import load_model, load_stages
    from jaxinfer.models.plan import plan_model
    from jaxinfer.parallel.distributed import join_processes
    from jaxinfer.parallel.mesh import add_cpu_devices, make_mesh
    from jaxinfer.runner.attention import choose_attention
    from jaxinfer.runner.device import check_device, limit_device
    from jaxinfer.runner.draft_model import check_draft, declared_draft, draft_shapes, with_draft
    from jaxinfer.runner.experts import choose_dispatch, choose_experts
    from jaxinfer.runner.kernel_backends import candidates, check_asked
    from jaxinfer.runner.kv_measure import MEASURED_TEXT, needs_measuring, with_scales_of_stages
    from jaxinfer.runner.layer_layout import layer_layout
    from jaxinfer.runner.pipeline.spans import layer_spans
    from jaxinfer.runner.pipeline.stage import StagedModel, stage_meshes
    from jaxinfer.runner.platform import platform_name, program_options, resolve_dtype, use_compile_cache
    from jaxinfer.runner.products import choose_products
    from jaxinfer.runner.sizes import context_of, plan_shapes, this_device

    laps.end("imports")
    limit_device(config.runner.device)
    if asked is not None:
        add_cpu_devices(asked.size // team.num_hosts)
    if team.place is not None:
        join_processes(*team.place)
    check_device(config.runner.device)
    if asked is not None:
        make_mesh(asked)  # too few devices are told before a model is sought
    folder = model_folder(config)
    files = read_declared(folder, config.load.architecture, config.load.ignore_config_keys)
    if config.parallel.enable_expert_parallel and not files.config.expert_layers:
        raise ParameterError("enable_expert_parallel", "the model has no experts; leave it out")
    decoder = files.config.at_context(context_of(config, files.config)).quantised(config.load.quantization)
    decoder = decoder.keeping(KV_CODES[config.cache.kv_cache_dtype])
    dtype = resolve_dtype(config.load.dtype, held=decoder.held_dtype)
    asked = asked or _auto_mesh(config, decoder, dtype)
    mesh = make_mesh(asked)
    decoder = decoder.over(*asked.parts)
    backend = _backend_of_team(config, team)
    cache = use_compile_cache(config.runner.compile_cache_dir)
    notes = None if cache is None else cache.folder
    options = program_options(config.runner)
    # What cannot be is told before weights are read.
    check_asked(backend, mesh)
    native = backend in ("auto", "native") and candidates(mesh, dtype) == ("native",)
    sizes = plan_shapes(config, decoder, this_device(native), asked.data, asked.stages)
    spans = layer_spans(config.parallel.pipeline_layers, decoder, dtype, platform_name(), asked)
    draft_folder = _draft_folder(config)
    first = decoder if len(spans) == 1 else decoder.stage(*spans[0])  # what drafts lies beside it
    drafting, drafts, eagle = sizes.drafting, None, None
    if drafting is not None and drafting.method == "eagle3":
        assert draft_folder is not None
        eagle = declared_eagle3(draft_folder, decoder).over(*asked.parts)
        check_draft(draft_folder, decoder, eagle.decoder, sizes.max_model_len)
    elif draft_folder is not None:
        drafts = declared_draft(draft_folder, first, sizes.max_model_len).over(*asked.parts)
    measures = config.cache.kv_cache_dtype == "int8"
    text = Tokenizer(_tokenizer_folder(config)).encode(MEASURED_TEXT) if measures else []
    laps.end("plan")

    def layout_of(decoder: "DecoderConfig") -> "Layout":
        return layer_layout(config.runner.scan_layers, plan_model(decoder, dtype), platform_name(), asked.of_stage)

    place, told = {"dtype": dtype, "rules": asked.rules}, progress.loaded if progress else None
    meshes = stage_meshes(mesh)
    parts = load_stages(folder, decoder, spans, meshes=meshes, layout=layout_of(decoder), progress=told, **place)
    draft = None
    if draft_folder and drafts:
        draft = load_model(draft_folder, drafts, mesh=meshes[0], layout=layout_of(drafts), **place)
    if draft_folder and eagle:
        draft = load_eagle3(draft_folder, eagle, mesh=mesh, **place)
    if needs_measuring(parts[0]):
        if team.num_hosts > 1:
            message = "int8: scales are not measured over several hosts; fp8 is allowed, or a checkpoint that has them"
            raise ParameterError("kv_cache_dtype", message)
        parts = with_scales_of_stages(parts, text)
    laps.end("load")

    def with_backends(model: "LoadedModel", sizes: EngineShapes) -> "LoadedModel":
        model = choose_attention(model, sizes, backend, notes)
        if team.num_hosts > 1:
            return model
        model = choose_experts(model, sizes, backend, notes)
        model = choose_dispatch(model, sizes, notes)
        return choose_products(model, sizes, backend, notes)

    model = StagedModel(parts).map(lambda part, stage: with_backends(part, stage.shapes(sizes)))
    if draft is not None:
        leading, own = model.parts[0], model.stages[0].shapes(sizes)
        leading = with_draft(leading, with_backends(draft, draft_shapes(with_draft(leading, draft), own)))
        model = StagedModel((leading, *model.parts[1:]))
    shapes = _with_blocks(config, model, sizes, notes, options, team)
    laps.end("fit")
    backends = ", ".join(dict.fromkeys(backend.name for part in model.parts for backend in part.backends))
    held = model.config.held_in(str(dtype))
    _tell_sizes(progress, _place(asked, model, spans), _types(str(dtype), held, model), backends, shapes)
    runner = _runner(config, model, shapes, cache, options)
    # It reads a tokenizer, which holds up all threads for a second or more: nobody waits for an answer yet.
    constraints = _grammars(config, folder, shapes, files.eos_token_ids) if leads else None
    told = progress.compiled if progress else None
    runner.warm_up(told, lazy=config.runner.lazy_compile, compiled=lambda: team.agree("compiled", {}))
    heap.release()
    laps.end("warm_up")
    info = _info(config, shapes, backends, str(dtype), held, str(asked))
    return _Made(runner, model, info, folder, files.eos_token_ids, constraints)


def _backend_of_team(config: EngineConfig, team: Team) -> AttentionBackend:
    """Return the attention backend to use. Over several hosts nothing is timed, since programs of all of them would
    have to run in one order: auto is xla there."""
    asked = config.runner.attention_backend
    return "xla" if asked == "auto" and team.num_hosts > 1 else asked


def _runner(
    config: EngineConfig, model: "StagedModel", shapes: EngineShapes, cache: "CompileCache | None", options: "Options"
) -> "JaxRunner":
    from jaxinfer.runner.jax_runner import JaxRunner
    from jaxinfer.runner.program_store import open_store

    every = config.parallel.expert_placement_steps
    stores = [open_store(cache, part, shapes, options) for part in model.parts]
    return JaxRunner(model, shapes, options=options, stores=stores, expert_placement_steps=every)


def _place(mesh: MeshConfig, model: "StagedModel", spans: "Spans") -> str:
    """The devices, and how layers lie on them, for people."""
    from jaxinfer.runner.platform import platform_name

    platform = platform_name()
    place = platform if mesh.size == 1 else f"{platform} ({mesh})"
    if len(spans) > 1:
        place += f", stages of layers {', '.join(f'{first}-{last - 1}' for first, last in spans)}"
    # A CPU's always are.
    return place + (", layers in a loop" if model.parts[0].layout == "stacked" and platform != "cpu" else "")


def _grammars(config: EngineConfig, folder: Path, shapes: EngineShapes, eos_ids: Sequence[int]) -> Grammars | None:
    """None for a model without a tokenizer."""
    other = config.load.tokenizer
    file = (folder if other is None else _folder(other, None, "tokenizer.json")) / "tokenizer.json"
    return Grammars(file, shapes.vocab_size, eos_ids) if file.is_file() else None


def _auto_mesh(config: EngineConfig, decoder: "DecoderConfig", dtype: "jnp.dtype") -> MeshConfig:
    """The mesh of `--mesh auto` for the devices of this process, for weights in `dtype`."""
    import jax

    from jaxinfer.runner.inspection import taken_of_device
    from jaxinfer.runner.platform import platform_name, usable_memory

    platform, devices = platform_name(), len(jax.local_devices())
    memory = usable_memory(config.cache.gpu_memory_utilization)
    if memory is None and platform == "cpu":
        log.info("--mesh auto: one device, since a CPU's memory is not divided")
        return ONE_DEVICE
    if memory is None:
        message = "--mesh auto: one of %d devices, since %s does not tell how much memory they have; name a mesh"
        log.warning(message, devices, platform)
        return ONE_DEVICE
    mesh, reason = choose_mesh(devices, memory, lambda mesh: taken_of_device(decoder, dtype, platform, mesh))
    log.info("--mesh auto: %s", reason)
    return mesh


class _Laps:
    """Time from the end of one part to that of the next."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, part: str) -> None:
        now = time.perf_counter()
        self._parts[part] = now - self._last
        self._last = now

    def seconds(self, tracing: float, programs: float) -> BuildSeconds:
        """tracing: part of the seconds of making `programs`, all of which the last part contains."""
        laps = BuildSeconds(**self._parts)
        return laps._replace(tracing=tracing, compile=programs - tracing, warm_up=laps.warm_up - programs)


def _with_blocks(
    config: EngineConfig,
    model: "StagedModel",
    shapes: EngineShapes,
    cache: Path | None,
    options: "Options",
    team: Team = ALONE,
) -> EngineShapes:
    from jaxinfer.runner.memory import with_blocks
    from jaxinfer.runner.pipeline.fitting import fitting_blocks
    from jaxinfer.runner.sizes import fit_context

    if config.cache.num_blocks is not None:
        blocks = [_share_of_blocks(config.cache.num_blocks, shapes.shards)] * len(shapes.groups)
    else:
        blocks = fitting_blocks(model, shapes, config.cache.gpu_memory_utilization, cache, options)
    return fit_context(config, with_blocks(shapes, team.agree("loaded", {"sizes": repr(shapes)}, blocks)))


def _share_of_blocks(num_blocks: int, shards: int) -> int:
    if num_blocks < 2 * shards:  # the setting itself is 2 at least
        least = f"{num_blocks} must be at least {2 * shards}"
        raise ParameterError(
            "num_blocks", f"{least}: it is shared out among {shards} shards, and each has a scratch block"
        )
    return num_blocks // shards


def seed_of(config: EngineConfig) -> int:
    """Return the seed from which those of requests without one are drawn: the setting, or another number at every
    start."""
    return random.SystemRandom().getrandbits(63) if config.load.seed is None else config.load.seed


def _types(dtype: str, held: str, model: "StagedModel") -> str:
    """Return the type of activations, and the types of weights and KV blocks that differ from it. held: type of
    weights."""
    every = (str(part.kv_type(group)) for part in model.parts for group in range(len(part.backends)))
    kept = ", ".join(dict.fromkeys(every))
    others = [f"{name} in {form}" for name, form in (("weights", held), ("KV blocks", kept)) if form != dtype]
    return f"{dtype} ({'; '.join(others)})" if others else dtype


def _tell_sizes(progress: BuildProgress | None, place: str, dtype: str, backends: str, shapes: EngineShapes) -> None:
    sizes = sizes_line(place, dtype, backends, shapes)
    log.info("%s", sizes)
    if progress is not None:
        progress.sized(sizes)


def sizes_line(place: str, dtype: str, backends: str, shapes: EngineShapes) -> str:
    """Describe an engine's type, backends and sizes in one line for the user. place: platform and mesh.

    Blocks are those of the first KV group, and its tokens.
    """
    blocks, size = shapes.groups[0].num_blocks, shapes.block_size
    drafts = f"; {shapes.drafting.tokens} drafts by {shapes.drafting.drafter}" if shapes.drafting is not None else ""
    return (
        f"{dtype} on {place}, attention {backends}; {shapes.all_seqs} sequences at once, "
        f"{shapes.max_num_batched_tokens * shapes.shards:,} tokens a step, context {shapes.max_model_len:,}; "
        f"{blocks * shapes.shards:,} KV blocks of {size}, for {(blocks - 1) * shapes.shards * size:,} tokens{drafts}"
    )


def _info(config: EngineConfig, shapes: EngineShapes, backends: str, dtype: str, weights: str, mesh: str) -> ModelInfo:
    return ModelInfo(
        name=config.model,
        max_model_len=shapes.max_model_len,
        vocab_size=shapes.vocab_size,
        max_num_seqs=shapes.all_seqs,
        block_size=shapes.block_size,
        num_blocks=shapes.groups[0].num_blocks * shapes.shards,
        attention_backend=backends,
        scheduling_policy=config.scheduler.scheduling_policy,
        kv_cache_dtype=config.cache.kv_cache_dtype,
        dtype=dtype,
        weights=weights,
        shards=shapes.shards,
        mesh=mesh,
        takes_predictions=shapes.takes_predictions,
    )
