"""Weights from safetensors folders: what is read, and what is refused with which words."""

import itertools
import json
import os
import struct
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxinfer.checkpoint import safetensors
from jaxinfer.checkpoint.safetensors import Checkpoint
from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import parse_config
from jaxinfer.models import tied_head
from jaxinfer.models.loaded import load_model, plan_model
from tests.model_config.uniform import kind_of

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"
Q = "model.layers.0.self_attn.q_proj.weight"


def config_of(family: str):
    return parse_config(json.loads((GOLDENS / family / "config.json").read_text()))


def tensors_of(family: str) -> dict[str, np.ndarray]:
    return load_file(GOLDENS / family / "model.safetensors")


def load(folder: Path, family: str = "llama2", **options):
    return load_model(folder, config_of(family), **{"dtype": jnp.float32, **options})


def named(model):
    plan = plan_model(model.config, jnp.dtype(jnp.float32))
    return {weight.path: np.asarray(array) for weight, array in zip(plan.weights, model.weights, strict=True)}


def test_fused_weights_hold_the_tensors():
    tensors, config = tensors_of("qwen2"), config_of("qwen2")
    weights = named(load(GOLDENS / "qwen2", "qwen2"))
    attention = kind_of(config).mixer
    heads, group, dim = attention.num_kv_heads, attention.group_size, attention.head_dim
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        qkv = weights["blocks", layer, "mixer", "qkv"]
        q = tensors[f"{prefix}self_attn.q_proj.weight"].reshape(heads, group, dim, -1)
        np.testing.assert_array_equal(qkv[:, :group], q)
        v = tensors[f"{prefix}self_attn.v_proj.weight"].reshape(heads, dim, -1)
        np.testing.assert_array_equal(qkv[:, group + 1], v)
        bias = tensors[f"{prefix}self_attn.k_proj.bias"].reshape(heads, dim)
        np.testing.assert_array_equal(weights["vectors", "leaves", "qkv_bias"][layer, :, group], bias)
        gate_up = weights["blocks", layer, "mlp", "gate_up"]
        up = tensors[f"{prefix}mlp.up_proj.weight"]
        np.testing.assert_array_equal(gate_up[:, 1].reshape(up.shape), up)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_source_types(tmp_path: Path, dtype):
    tensors = {name: x.astype(dtype) for name, x in tensors_of("llama2").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in model.weights} == {jnp.dtype(jnp.bfloat16)}
    wanted = tensors["lm_head.weight"].astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(model.head[0]), wanted)


def test_many_files_with_an_index(tmp_path: Path):
    tensors = tensors_of("llama2")
    names = sorted(tensors)
    weight_map = {name: f"part-{i % 3}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    one, many = load(GOLDENS / "llama2"), load(tmp_path)
    for a, b in zip(one.weights, many.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"part-1\.safetensors: cannot be read: No such file"):
        load(tmp_path)


ROWS = [slice(None), slice(0, 5), slice(3, 24), slice(7, 8), slice(5, 5)]
COLUMNS = [(), (slice(None),), (slice(0, 5),), (slice(3, 10), slice(None)), (slice(9, 10), slice(1, 2)), (slice(4, 4),)]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("at_once", [1, 333, 2**20])
def test_any_part_is_read(
    tmp_path: Path, rows: slice, columns: tuple[slice, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(safetensors, "_READ_AT_ONCE", at_once)
    whole = np.random.default_rng(0).standard_normal((24, 10, 3)).astype(ml_dtypes.bfloat16)
    save_file({"before": np.ones(7, np.float16), "w": whole, "x": np.ones(3, np.float32)}, tmp_path / "a.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        part = checkpoint.read("w", (rows, *columns))
        assert checkpoint.size(["w", "x"]) == 24 * 10 * 3 * 2 + 12
    assert part.dtype == whole.dtype
    np.testing.assert_array_equal(part, whole[(rows, *columns)])


def test_other_threads_run_while_a_tensor_is_read(tmp_path: Path):
    """Heartbeats must go on where the disk is slow. No thread can take the lock here: the reader has to give it up."""
    save_file({"w": np.ones((2048, 4096), np.float32)}, tmp_path / "model.safetensors")
    beats, ended = itertools.count(), threading.Event()
    turns = [0]

    def beat() -> None:
        while not ended.is_set():
            turns[0] = next(beats)
            time.sleep(0)

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=beat)
    try:
        with Checkpoint(tmp_path) as checkpoint:
            checkpoint.read("w", (slice(0, 1),))
            sys.setswitchinterval(1000)
            thread.start()
            before = turns[0]
            for _ in range(100):
                checkpoint.read("w", (slice(None),))
                if turns[0] > before:
                    break
            assert turns[0] > before
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_a_file_that_has_become_shorter_is_named(tmp_path: Path):
    save_file({"w": np.ones((64, 64), np.float32)}, tmp_path / "model.safetensors")
    with Checkpoint(tmp_path) as checkpoint:
        os.truncate(tmp_path / "model.safetensors", 4096)
        with pytest.raises(ModelError, match=r"model\.safetensors: tensor w is truncated"):
            checkpoint.read("w", (slice(None),))


def test_progress_counts_all_bytes():
    calls = []
    load(GOLDENS / "llama2", progress=lambda done, total: calls.append((done, total)))
    total = sum(x.nbytes for x in tensors_of("llama2").values())
    assert calls[-1] == (total, total)
    assert calls == sorted(calls)
    assert len(calls) > 5


def test_harmless_extras(tmp_path: Path):
    tensors = tensors_of("qwen3")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(12, np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path, "qwen3")
    assert any(model.head[0] is leaf for leaf in model.weights)


def test_a_head_that_differs_from_the_tied_embedding_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """transformers uses it, with a warning. Logits are the untied model's, whose config.json says so."""
    tensors = tensors_of("qwen3")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][::-1].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path, "qwen3")
    assert not model.config.tie_word_embeddings
    np.testing.assert_array_equal(np.asarray(model.head[0]), tensors["lm_head.weight"])
    np.testing.assert_array_equal(named(model)["embed",], tensors["model.embed_tokens.weight"])
    [warning] = caplog.records
    assert warning.levelname == "WARNING"
    assert "model.embed_tokens.weight and lm_head.weight differ" in warning.getMessage()


def test_a_head_is_compared_to_its_end_and_in_the_type_of_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    tensors = tensors_of("qwen3")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["lm_head.weight"][-1, -1] *= 1 + 2**-20
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr(tied_head, "_COMPARED_AT_ONCE", 7 * 32)
    assert load(tmp_path, "qwen3", dtype=jnp.bfloat16).config.tie_word_embeddings
    assert not caplog.records
    assert not load(tmp_path, "qwen3").config.tie_word_embeddings


@pytest.mark.parametrize("head", [np.ones((95, 32), np.float32), np.ones((96, 32), np.int8)])
def test_a_tied_head_of_another_shape_or_type_is_refused(tmp_path: Path, head: np.ndarray):
    save_file({**tensors_of("qwen3"), "lm_head.weight": head}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"tensor lm_head.weight (has shape \[95, 32\]|is I8)"):
        load(tmp_path, "qwen3")


def without(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(Q), f"tensor {Q} is missing"),
        (without("lm_head.weight"), "tensor lm_head.weight is missing"),
        (lambda t: {**t, "model.extra": np.ones(2)}, r"model\.safetensors: tensor model.extra has no place"),
        (lambda t: {**t, "a.x": np.ones(2), "b.x": np.ones(2)}, "tensor a.x and 1 more has no place"),
        (lambda t: {**t, Q: t[Q][:-1]}, rf"{Q} has shape \[31, 32\]; config.json asks for \[32, 32\]"),
        (lambda t: {**t, Q: t[Q].astype(np.int8)}, f"tensor {Q} is I8; F32, F16 and BF16 can be read"),
    ],
)
def test_wrong_tensors(tmp_path: Path, change, message: str):
    save_file(change(tensors_of("llama2")), tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, 3000, -200, -1])
def test_truncated_files(tmp_path: Path, keep: int):
    data = (GOLDENS / "llama2" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors: .*truncated"):
        load(tmp_path)


def test_a_truncated_tensor_is_named(tmp_path: Path):
    data = (GOLDENS / "llama2" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1])
    with Checkpoint(GOLDENS / "llama2") as whole:
        assert "model.norm.weight" in whole.names
    with pytest.raises(ModelError, match=r"tensor [a-z_.0-9]+ is truncated: it ends at byte"):
        load(tmp_path)


def corrupt(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        corrupt(b"not json"),
        corrupt(b"[1, 2]"),
        corrupt(b'{"a": 3}'),
        corrupt(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}'),
        corrupt(b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 0]}}'),
        struct.pack("<Q", 2**60) + b"{}",
    ],
)
def test_corrupt_headers(tmp_path: Path, data: bytes):
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "is not valid JSON"),
        ("{}", "is not an index"),
        ('{"weight_map": [1]}', "is not an index"),
        ('{"weight_map": {"a": "../x.safetensors"}}', "is not the name of a file"),
        ('{"weight_map": {"a": "model.safetensors"}}', "tensor a is missing, though"),
        (json.dumps({"weight_map": {Q: "model.safetensors"}}), "is not listed in"),
    ],
)
def test_bad_index(tmp_path: Path, index: str, message: str):
    save_file(tensors_of("llama2"), tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_other_formats_are_refused(tmp_path: Path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="only safetensors files are read"):
        load(tmp_path)
