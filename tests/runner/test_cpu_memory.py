"""How many KV blocks a CPU gets, of machines and containers that need not be here."""

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.engine.step.shapes import EngineShapes, KVGroup
from jaxinfer.errors import ParameterError
from jaxinfer.runner.fit import cpu_memory, fitting
from jaxinfer.runner.fit.cpu_memory import cpu_blocks, machine_memory
from jaxinfer.runner.fit.memory import with_blocks
from jaxinfer.runner.fit.sizes import fit_context
from jaxinfer.runner.step.stage import StagedModel
from tests.runner.tiny import tiny_model, tiny_shapes

GIB = 1 << 30
QWEN = EngineShapes(
    max_num_seqs=32,
    max_num_batched_tokens=512,
    max_scored=96,
    max_model_len=40960,
    block_size=16,
    groups=(KVGroup(None, 0),),
    vocab_size=151936,
)
"""Qwen3-0.6B in float32."""
BLOCK, WEIGHTS = 16 * 28 * 2 * 8 * 128 * 4, 596_049_920 * 4


def context(blocks: int) -> int:
    return fit_context(EngineConfig(), with_blocks(QWEN, [blocks])).max_model_len


@pytest.mark.parametrize(
    ("memory", "blocks", "reason"),
    [
        (24, 2624, "a sequence of 40,960 tokens"),
        (16, 2000, "half of what weights leave"),
        (4, 260, "half of what weights leave"),
        (2, 0, "half of what weights leave"),
        (100, 3648, "an eighth"),
        (1000, 4096, "4,096 blocks"),
    ],
)
def test_blocks_follow_the_machine_and_the_model(memory: int, blocks: int, reason: str) -> None:
    assert cpu_blocks([BLOCK], QWEN, memory * GIB, WEIGHTS) == ([blocks], reason)
    assert blocks * BLOCK <= max(memory * GIB - WEIGHTS, 0) // 2


def test_the_longest_sequence_is_served_whole_or_the_flag_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert context(2624) == 40960
        assert not caplog.messages
        assert context(2000) == 1999 * 16
    (told,) = caplog.messages
    assert told.startswith("max_model_len is 31984 instead of 40960")
    assert "--num-blocks 2561" in told
    assert context(2561) == 40960


def test_a_long_sequence_takes_no_more_of_a_window_than_it_needs() -> None:
    groups = (KVGroup(None, 0), KVGroup(1024, 0))
    shapes = replace(QWEN, groups=groups)
    assert cpu_blocks([BLOCK, BLOCK], replace(shapes, max_model_len=64), 64 * GIB, 0).blocks == [1168, 1168]
    assert cpu_blocks([BLOCK, BLOCK], shapes, 64 * GIB, 0).blocks == [2624, 1168]


def test_small_models_take_little_of_a_large_machine() -> None:
    shapes = replace(QWEN, max_model_len=256)
    assert cpu_blocks([1024], shapes, 1000 * GIB, 0).blocks == [4096]
    longer = replace(QWEN, max_model_len=131072)
    assert cpu_blocks([1024], longer, 1000 * GIB, 0).blocks == [8256]


def test_weights_that_leave_no_room_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    monkeypatch.setattr(fitting, "machine_memory", lambda: 1000)
    with pytest.raises(ParameterError, match=r"num_blocks: weights take .* leaves no room; give a number"):
        fitting.fitting_blocks(StagedModel((model,)), tiny_shapes(model), 0.9, None, {})


def test_what_was_chosen_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model()
    monkeypatch.setattr(fitting, "machine_memory", lambda: 8 * GIB)
    with caplog.at_level(logging.INFO):
        blocks = fitting.fitting_blocks(StagedModel((model,)), tiny_shapes(model), 0.9, None, {})
    assert blocks == [4096]
    assert "KV blocks take 4 MiB of the machine's 8,192 MiB: 4,096 blocks" in caplog.messages


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file system of a machine of 24 GiB."""
    monkeypatch.setattr(cpu_memory.psutil, "virtual_memory", lambda: SimpleNamespace(total=24 * GIB))
    return tmp_path


def files(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_machine_without_control_groups_is_all_there(root: Path) -> None:
    assert machine_memory(root) == 24 * GIB


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {f"{V2}/memory.max": "max\n"}, 24),
        ("0::/\n", {f"{V2}/memory.max": f"{4 * GIB}\n"}, 4),
        ("0::/a/b\n", {f"{V2}/a/memory.max": f"{3 * GIB}\n", f"{V2}/a/b/memory.max": "max\n"}, 3),
        ("0::/a/b\n", {f"{V2}/a/memory.max": f"{9 * GIB}\n", f"{V2}/a/b/memory.max": f"{2 * GIB}\n"}, 2),
        ("0::/../..\n", {f"{V2}/memory.max": f"{5 * GIB}\n"}, 5),
        ("8:pids:/x\n4:memory:/docker/9\n0::/\n", {f"{V1}/memory.limit_in_bytes": f"{6 * GIB}\n"}, 6),
        ("4:cpu,memory:/a\n", {f"{V1}/a/memory.limit_in_bytes": f"{7 * GIB}"}, 7),
        ("4:memory:/\n", {f"{V1}/memory.limit_in_bytes": "9223372036854771712\n"}, 24),
        ("8:pids:/\n", {f"{V1}/memory.limit_in_bytes": f"{GIB}\n"}, 24),
    ],
)
def test_a_containers_limit_counts(groups: str, limits: dict[str, str], expected: int, root: Path) -> None:
    files(root, **{"proc/self/cgroup": groups}, **limits)
    assert machine_memory(root) == expected * GIB
