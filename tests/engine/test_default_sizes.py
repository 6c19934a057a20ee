"""How many sequences and tokens run at once where the settings leave it to the device."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxinfer.build import sizes_line
from jaxinfer.build.fitted import fitted_shapes
from jaxinfer.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.runner.fit.sizes import Device, plan_shapes
from tests.engine.small import small_shapes
from tests.model_config.config_json import LLAMA

GIB = 2**30


CPU = Device("cpu", None)


def sizes(device: Device = CPU, vocab_size: int = 100, shards: int = 1, **settings: Any) -> tuple[int, int]:
    decoder = parse_config({**LLAMA, "vocab_size": vocab_size})
    shapes = plan_shapes(EngineConfig(scheduler=SchedulerConfig(**settings)), decoder, device, shards)
    return shapes.max_num_seqs, shapes.max_num_batched_tokens


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("cpu", None, (32, 512)), ("gpu", 24 * GIB, (256, 2048)), ("gpu", 139 * GIB, (1024, 8192)),
        ("tpu", 16 * GIB, (256, 2048)), ("tpu", 95 * GIB, (1024, 8192)), ("gpu", 63 * GIB, (1024, 8192)),
    ],
)  # fmt: skip
def test_the_device_decides(name: str, memory: int | None, expected: tuple[int, int]) -> None:
    assert sizes(Device(name, memory)) == expected


def test_fewer_sequences_where_their_state_does_not_fit() -> None:
    assert sizes(Device("gpu", 4 * GIB), 256_000)[0] == 256  # 128 MiB of counts, which are int16
    assert sizes(Device("gpu", 2 * GIB), 256_000)[0] == 128
    assert sizes(Device("gpu", GIB // 4), 256_000)[0] == 32


def test_what_is_given_bounds_what_is_not() -> None:
    gpu = Device("gpu", 80 * GIB)
    assert sizes(gpu, max_num_batched_tokens=100) == (100, 100)
    assert sizes(gpu, max_scored=64) == (64, 8192)
    assert sizes(gpu, max_num_seqs=10_000) == (10_000, 10_000)
    assert sizes(gpu, max_num_seqs=8, max_num_batched_tokens=16) == (8, 16)


def test_what_is_asked_for_is_the_total_of_all_shards() -> None:
    assert sizes(shards=8) == (32 // 8, 512 // 8)
    assert sizes(shards=4, max_num_seqs=10, max_num_batched_tokens=18) == (2, 4)
    config = EngineConfig(scheduler=SchedulerConfig(max_num_seqs=8, max_scored=19))
    assert plan_shapes(config, parse_config(LLAMA), CPU, 8).max_scored == 2


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "max_scored"])
def test_a_shard_without_a_part_of_what_is_asked_for_is_refused(name: str) -> None:
    enough: dict[str, Any] = {name: 8}
    few: dict[str, Any] = {name: 7}
    assert sizes(shards=8, **enough)[0] == 1
    with pytest.raises(ParameterError, match=f"{name}: 7 must be at least 8: it is shared out among 8 shards"):
        sizes(shards=8, **few)


def test_each_shard_computes_whole_prompts_where_they_are_not_split() -> None:
    length = parse_config(LLAMA).max_position_embeddings
    settings: dict[str, Any] = {"enable_chunked_prefill": False, "max_num_seqs": 8}
    assert sizes(shards=4, **settings)[1] == length
    assert sizes(shards=4, **settings, max_num_batched_tokens=4 * length + 3)[1] == length
    with pytest.raises(ParameterError, match=rf"max_num_batched_tokens: \d+ must be .*{length} \* 4"):
        sizes(shards=4, **settings, max_num_batched_tokens=4 * length - 1)


def blocks(shards: int, num_blocks: int) -> int:
    """Those of a shard where so many are asked for."""
    model: Any = SimpleNamespace(mesh=None)
    config = EngineConfig(cache=CacheConfig(num_blocks=num_blocks))
    shapes = fitted_shapes(config, model, small_shapes(0, shards=shards), None, cast(Any, None))
    return shapes.groups[0].num_blocks


def test_blocks_that_are_asked_for_are_those_of_all_shards() -> None:
    assert [blocks(1, 100), blocks(8, 100), blocks(8, 16)] == [100, 12, 2]
    with pytest.raises(ParameterError, match="num_blocks: 15 must be at least 16: it is shared out among 8 shards"):
        blocks(8, 15)


def test_the_line_says_what_was_decided() -> None:
    shapes = small_shapes(1001, block_size=16)
    line = sizes_line("gpu", "bfloat16", "mosaic_gpu", shapes)
    assert line.startswith("bfloat16 on gpu, attention mosaic_gpu; 4 sequences at once, ")
    assert line.endswith("; 1,001 KV blocks of 16, for 16,000 tokens")
