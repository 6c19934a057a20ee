"""How many sequences and tokens run at once where the settings leave it to the device."""

from typing import Any

import pytest

import jaxinfer.runner.platform as platform
from jaxinfer.build import plan_shapes, sizes_line
from jaxinfer.config import EngineConfig, SchedulerConfig
from jaxinfer.model_config.registry import parse_config
from tests.engine.small import small_shapes
from tests.model_config.config_json import LLAMA

GIB = 2**30


@pytest.fixture
def device(monkeypatch):
    """Says which platform this is, and how much memory it has."""

    def use(name: str, memory: int | None) -> None:
        monkeypatch.setattr(platform, "platform_name", lambda: name)
        monkeypatch.setattr(platform, "device_memory", lambda: memory)

    return use


def sizes(vocab_size: int = 100, **settings: Any) -> tuple[int, int]:
    decoder = parse_config({**LLAMA, "vocab_size": vocab_size})
    shapes = plan_shapes(EngineConfig(scheduler=SchedulerConfig(**settings)), decoder)
    return shapes.max_num_seqs, shapes.max_num_batched_tokens


@pytest.mark.parametrize(
    ("name", "memory", "expected"),
    [
        ("cpu", None, (32, 512)), ("gpu", 24 * GIB, (256, 2048)), ("gpu", 139 * GIB, (256, 8192)),
        ("tpu", 16 * GIB, (256, 2048)), ("tpu", 95 * GIB, (256, 8192)), ("gpu", 63 * GIB, (256, 8192)),
    ],
)  # fmt: skip
def test_the_device_decides(device, name: str, memory: int | None, expected: tuple[int, int]) -> None:
    device(name, memory)
    assert sizes() == expected


def test_fewer_sequences_where_their_state_does_not_fit(device) -> None:
    device("gpu", 4 * GIB)
    assert sizes(vocab_size=256_000)[0] == 256  # 128 MiB of counts, which are int16
    device("gpu", 2 * GIB)
    assert sizes(vocab_size=256_000)[0] == 128
    device("gpu", GIB // 4)
    assert sizes(vocab_size=256_000)[0] == 32


def test_what_is_given_bounds_what_is_not(device) -> None:
    device("gpu", 80 * GIB)
    assert sizes(max_num_batched_tokens=100) == (100, 100)
    assert sizes(max_scored=64) == (64, 8192)
    assert sizes(max_num_seqs=10_000) == (10_000, 10_000)
    assert sizes(max_num_seqs=8, max_num_batched_tokens=16) == (8, 16)


def test_the_line_says_what_was_decided() -> None:
    shapes = small_shapes(1001, block_size=16)
    line = sizes_line("gpu", "bfloat16", "mosaic_gpu", shapes)
    assert line.startswith("bfloat16 on gpu, attention mosaic_gpu; 4 sequences at once, ")
    assert line.endswith("; 1,001 KV blocks of 16, for 16,000 tokens")
