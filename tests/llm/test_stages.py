"""Stages of an engine's start: what the first two say without a device is what an engine has."""

import jax.numpy as jnp
import pytest

from jaxinfer.build import build_engine
from jaxinfer.build.declared import declare, declare_alone
from jaxinfer.build.sized import size
from jaxinfer.config import CacheConfig, EngineConfig, ModelConfig, RunnerConfig, SchedulerConfig
from jaxinfer.parallel.mesh_config import ONE_DEVICE
from jaxinfer.runner.fit.memory import with_blocks
from jaxinfer.runner.fit.sizes import this_device
from tests.models.goldens import GOLDENS


@pytest.mark.parametrize("drafting", [None, '{"method": "ngram"}'], ids=["plain", "ngram"])
def test_sizes_without_a_device_are_those_of_the_engine(drafting: str | None) -> None:
    config = EngineConfig(
        str(GOLDENS / "gemma3"),
        ModelConfig(max_model_len=48),
        CacheConfig(num_blocks=20),
        SchedulerConfig(max_num_seqs=3, speculative_config=drafting),
        runner=RunnerConfig(compile="lazy", attention_backend="xla"),
    )
    runner = build_engine(config).core.runner
    decoder = declare(config).held(config)
    sized = size(config, decoder.over(*ONE_DEVICE.parts), ONE_DEVICE, this_device(), jnp.dtype("float32"))
    assert with_blocks(sized.shapes, [20] * len(sized.shapes.groups)) == runner.shapes
    assert sized.parts == (sized.decoder,)


def test_a_config_json_alone_declares_what_its_folder_does() -> None:
    folder = GOLDENS / "gemma3"
    alone, whole = (declare_alone(EngineConfig(str(one))) for one in (folder / "config.json", folder))
    assert (alone.config, alone.architecture) == (whole.config, whole.architecture)
    assert whole == declare(EngineConfig(str(folder)))
