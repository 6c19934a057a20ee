"""Last stage: the runner, whose programs are compiled and have run once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxinfer import heap
from jaxinfer.build.asked import StartRequest
from jaxinfer.build.described import model_info
from jaxinfer.build.fitted import Fitted
from jaxinfer.build.folders import own_tokenizer
from jaxinfer.config import CompileTime, EngineConfig
from jaxinfer.engine.stats.step_cost import StepCosts
from jaxinfer.engine.types import ModelInfo
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.runner.fit.fitting import costs_of_stages
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.platform.values import platform_of
from jaxinfer.runner.programs.store import open_store


@dataclass(frozen=True)
class CompiledEngine:
    """An engine's parts that every host has. constraints: None where the host does not schedule, or the model has no
    tokenizer. when: programs were compiled."""

    runner: JaxRunner
    info: ModelInfo
    folder: Path
    eos_token_ids: tuple[int, ...]
    costs: StepCosts
    constraints: Grammars | None
    when: CompileTime


def compile_programs(asked: StartRequest, fitted: Fitted) -> CompiledEngine:
    """Make the programs, or read them from the cache, and run each once unless `compile` is lazy."""
    config, declared = asked.config, fitted.placed.declared
    runner = _runner(config, fitted)
    # It reads a tokenizer, which holds up all threads for a second or more: nobody waits for an answer yet.
    constraints = _grammars(config, fitted, declared.eos_token_ids) if asked.leads else None
    told = asked.progress.compiled if asked.progress else None
    when = compile_time(config, fitted)
    runner.warm_up(told, when=when, compiled=lambda: asked.team.agree("compiled", {}))
    heap.release()
    parts = declared.source, declared.eos_token_ids, costs_of_stages(fitted.model), constraints
    return CompiledEngine(runner, model_info(config, fitted), *parts, when)


def compile_time(config: EngineConfig, fitted: Fitted) -> CompileTime:
    """When programs are compiled, without `auto`."""
    asked = config.runner.compile
    on_gpu = platform_of(fitted.model.parts[0].mesh) == "gpu"
    return asked if asked != "auto" else "all" if on_gpu else "first"


def _runner(config: EngineConfig, fitted: Fitted) -> JaxRunner:
    model, shapes, options = fitted.model, fitted.shapes, fitted.placed.options
    every = config.parallel.expert_placement_steps
    stores = [open_store(fitted.placed.cache, part, shapes, options) for part in model.parts]
    return JaxRunner(model, shapes, options=options, stores=stores, expert_placement_steps=every)


def _grammars(config: EngineConfig, fitted: Fitted, eos_ids: Sequence[int]) -> Grammars | None:
    """None for a model without a tokenizer."""
    file = (own_tokenizer(config) or fitted.placed.declared.source) / "tokenizer.json"
    return Grammars(file, fitted.shapes.vocab_size, eos_ids) if file.is_file() else None
