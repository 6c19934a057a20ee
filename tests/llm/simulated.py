"""An engine without a device behind `jaxinfer.build`, for tests of what stands before it."""

from pathlib import Path
from typing import TYPE_CHECKING

import jaxinfer.build
import jaxinfer.build.folders
from jaxinfer.build import BuildProgress, BuiltEngine, seed_of, sizes_line
from jaxinfer.config import EngineConfig
from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.device.simulated import SimulatedRunner
from jaxinfer.engine.scheduler.draft_policy import DraftPolicy
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.engine.types import ModelInfo
from jaxinfer.hosts.team import Team
from jaxinfer.speculation import read_speculation
from tests.engine.expected import expected_tokens

if TYPE_CHECKING:
    import pytest

VOCAB = 268
"""The vocabulary of tests.text.folders.byte_level_folder."""


def model_folder(config: EngineConfig) -> Path:
    return Path(config.model)


def build_engine(config: EngineConfig, progress: BuildProgress | None = None, team: Team | None = None) -> BuiltEngine:
    """Token ids come from the simulated device; sizes from the settings."""
    seqs = 32 if config.scheduler.max_num_seqs == "auto" else config.scheduler.max_num_seqs
    length = config.load.max_model_len or 64
    shapes = EngineShapes(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, 32),
        max_scored=seqs,
        max_model_len=length,
        block_size=4,
        groups=(KVGroup(None, 200),),
        vocab_size=VOCAB,
        drafting=read_speculation(config.scheduler.speculative_config),
    )
    if progress is not None:
        progress.loaded(1, 2)
        progress.sized(sizes_line("cpu", "float32", "xla", shapes))
        progress.compiled("forward", 1, 1, 0.1, True)
    info = ModelInfo(config.model, length, VOCAB, seqs, 4, 200, takes_predictions=shapes.takes_predictions)
    core = EngineCore(
        SimulatedRunner(shapes, hit_rate=0.5),
        info,
        scheduler=config.scheduler,
        cache=config.cache,
        eos_ids=(),
        seed=seed_of(config),
    )
    return BuiltEngine(core, Path(config.model))


def install() -> None:
    """Puts the simulated engine in the place of the real one, for this process."""
    jaxinfer.build.build_engine = build_engine
    jaxinfer.build.folders.model_folder = jaxinfer.build.model_folder = model_folder


def draft_always(monkeypatch: "pytest.MonkeyPatch") -> None:
    """Engines with speculation draft whatever time their steps take."""
    monkeypatch.setattr(DraftPolicy, "drafts", lambda policy, *_: policy.tokens)


def right_tokens(prompt: list[int], count: int, *, seed: int, index: int = 0) -> list[int]:
    """What the simulated device must draw."""
    return expected_tokens(prompt, count, seed=seed, index=index, windows=[None], vocab_size=VOCAB)
