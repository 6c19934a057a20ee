"""What others are asked for beside our kernels, and what is checked before anything is timed. Nothing is timed here."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.pages import write_kv

from benchmarks.kernel_bench import attention, cudnn_peer, kv_write, torch_peer, transformers_peer
from benchmarks.kernel_bench.bench import Bench, _timed
from benchmarks.kernel_bench.cases import GEMMA, LLAMA_8B, ModelShape, WriteCase, decode, mixed, prefill, verify
from benchmarks.kernel_bench.forms import GPU
from benchmarks.kernel_bench.timing import Ceilings

SMALL = ModelShape("small", 4, 2, 8, 8)
LATENT = ModelShape("latent", 4, 1, 12, 8, latent=True)
ON_GPU = Bench(GPU, "gpu", 64, Ceilings(1e12, 1e14))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91300)


def gathered(q: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any, scale: float) -> np.ndarray:
    """Row by row and head by head, in float64."""
    q, k_pages, v_pages = (np.asarray(each, np.float64) for each in (q, k_pages, v_pages))
    out, group, page = np.zeros(q.shape), q.shape[1] // k_pages.shape[2], k_pages.shape[1]
    for row, head in np.ndindex(q.shape[:2]):
        places = [(table[row, key // page], key % page, head // group) for key in range(int(lengths[row]))]
        keys, values = (np.array([side[place] for place in places]) for side in (k_pages, v_pages))
        weights = np.exp(scale * keys @ q[row, head])
        out[row, head] = weights @ values / weights.sum()
    return out


def fake_cudnn(fault: float) -> Any:
    def call(q: Any, *others: Any, scale: float) -> Any:
        def attend(q: Any, k_pages: Any, v_pages: Any, table: Any, lengths: Any) -> np.ndarray:
            return gathered(q, k_pages, v_pages, table, lengths, scale).astype(np.float32)

        kind = jax.ShapeDtypeStruct(q.shape, jnp.float32)
        found = jax.pure_callback(attend, kind, q, *others)
        return (found * (1 + fault)).astype(q.dtype)

    return call


@pytest.mark.parametrize(("fault", "wrong"), [(0.0, False), (0.1, True), (float("nan"), True)])
def test_cudnn_is_timed_where_it_attends_to_the_pages_of_its_table(
    fault: float, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cudnn_peer, "cudnn_decode", fake_cudnn(fault))
    case = decode(SMALL, 3, 21)
    if wrong:
        with pytest.raises(ValueError, match="the attention of cudnn paged are wrong"):
            cudnn_peer.paged_chain(case, 8, 2, 5, "float32")
        return
    chain = cudnn_peer.paged_chain(case, 8, 2, 5, "float32")
    assert chain.calls == 6  # whole rounds over two layers
    assert np.isfinite(np.asarray(chain.run(chain.state))).all()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("case", "names", "reason"),
    [
        (decode(LLAMA_8B, 4, 100), ["cudnn paged"], None),
        (prefill(LLAMA_8B, 2, 64), ["cudnn dense"], None),
        (prefill(LLAMA_8B, 1, 64, 32), [], "it takes one token a row, or whole prompts"),
        (mixed(LLAMA_8B, 4, 100, 8), [], "it takes one token a row, or whole prompts"),
        (verify(LLAMA_8B, 4, 100), [], "it takes one token a row, or whole prompts"),
        (decode(GEMMA, 4, 100), [], "its paged form has no window here"),
        (decode(LATENT, 4, 100), [], "it has no latent attention"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_cudnn_takes_what_it_can(case: Any, names: list[str], reason: str | None) -> None:
    makers, left_out = cudnn_peer.cudnn_peers(case, "gpu", 64, 1, 1, "bfloat16")
    assert list(makers) == names
    assert left_out == ({} if reason is None else {f"cudnn, {case.model.name} {case.kind}": reason})


def test_without_cudnn_its_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 90400)
    found = cudnn_peer.cudnn_peers(decode(LLAMA_8B, 4, 100), "gpu", 64, 1, 1, "bfloat16")
    assert found == ({}, {"cudnn": "cuDNN must be 90500 (9.5) or newer, not 90400"})
    found = cudnn_peer.cudnn_peers(decode(LLAMA_8B, 4, 100), "cpu", 64, 1, 1, "bfloat16")
    assert found == ({}, {"cudnn": "it needs a GPU, and JAX runs on cpu"})


@pytest.mark.usefixtures("library")
def test_on_a_gpu_each_case_has_the_backends_that_read_its_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (torch_peer, transformers_peer):
        monkeypatch.setattr(module, "no_torch", lambda platform: f"no torch on {platform}")
    makers, left_out = _timed(ON_GPU, decode(LLAMA_8B, 4, 100), 1, 1)
    assert list(makers) == ["xla", "mosaic_gpu", "cudnn paged"]
    assert left_out == dict.fromkeys(("torch", "transformers paged"), "no torch on gpu")
    assert list(_timed(ON_GPU, decode(LATENT, 4, 100), 1, 1).makers) == ["xla"]
    assert list(_timed(ON_GPU, WriteCase(LLAMA_8B, 4, 1, "bfloat16"), 1, 1).makers) == ["xla", "mosaic_gpu"]
    asked = ON_GPU._replace(backends=("mosaic_gpu",))
    assert list(_timed(asked, decode(LATENT, 4, 100), 1, 1).makers) == ["mosaic_gpu"]


@pytest.mark.usefixtures("library")
def test_whole_prompts_lower_to_causal_calls_of_cudnn_that_copy_no_layer() -> None:
    sizes = ((2, 64, 32, 128), (2, 64, 8, 128), (2, 64, 8, 128))
    q, *kept = (jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in sizes)
    chain = cudnn_peer.looped(cudnn_peer.dense_step(prefill(LLAMA_8B, 2, 64)), 3)
    text = chain.trace(q, [tuple(kept)] * 2, ()).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "__cudnn$" in line]
    assert len(calls) == 2
    assert all("CAUSAL" in call for call in calls)
    assert "slice" not in text


@pytest.mark.parametrize("case", [WriteCase(SMALL, 3, 1, "float8_e4m3fn"), WriteCase(SMALL, 1, 11, "float32")])
def test_writes_go_through_the_layers_and_change_what_is_new_alone(case: WriteCase) -> None:
    chain = kv_write.kv_write_chain(case, "xla", KVLayout.TOKENS, 8, 3, 5)
    before = np.asarray(chain.state).astype(np.float32)
    changed = (np.asarray(chain.run(chain.state)).astype(np.float32) != before).any(axis=-1)
    assert changed.sum(axis=(1, 2, 3, 4)).tolist() == [2 * case.tokens * SMALL.kv_heads] * 3


@pytest.mark.parametrize("fault", ["none", "a token is left out", "another slot is written"])
def test_a_write_that_is_wrong_is_not_timed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, writer = WriteCase(SMALL, 3, 1, "bfloat16"), kv_write._writer

    def write(pages: Any, layer: Any, k: Any, v: Any, tokens: kv_write.Tokens) -> Any:
        places = tokens.places
        if fault == "a token is left out":
            k, v, places = k[:-1], v[:-1], type(places)(*(each[:-1] for each in places))
        pages = write_kv(pages, layer, k, v, places, KVLayout.TOKENS)
        return pages.at[0, 0, 1, 0, 0, 0].set(1) if fault == "another slot is written" else pages

    monkeypatch.setattr(kv_write, "_writer", lambda name, layout: write if name == "other" else writer(name, layout))
    if fault == "none":
        assert kv_write.kv_write_chain(case, "other", KVLayout.TOKENS, 8, 1, 1).calls == 1
    else:
        with pytest.raises(ValueError, match="the pages of other are wrong"):
            kv_write.kv_write_chain(case, "other", KVLayout.TOKENS, 8, 1, 1)


@pytest.mark.parametrize("layout", [KVLayout.TOKENS, KVLayout.HEADS])
def test_pages_hold_values_of_earlier_steps_and_nan_elsewhere(layout: KVLayout) -> None:
    case = mixed(SMALL, 3, 13, 9)  # three rows of 12 cached tokens, and a prompt without any
    table, _ = attention.rows_of(case, 8)
    pages = np.asarray(
        attention.make_pages(
            SMALL, layout, 1, 1 + table.size, 8, "float32", attention.held_slots(case.lengths, table, 8)
        )
    )
    tokens = pages if layout is KVLayout.HEADS else np.moveaxis(pages, 1, 2)
    slots = np.isfinite(tokens if layout is KVLayout.TOKENS else np.moveaxis(tokens, 4, 3))[0, :, 0, :]
    slots = slots.reshape(1 + table.size, 8, -1)
    wanted = np.zeros((1 + table.size, 8), bool)
    wanted[table[:3, 0]] = True
    wanted[table[:3, 1], :4] = True
    np.testing.assert_array_equal(slots.all(axis=2), wanted)
    np.testing.assert_array_equal(slots.any(axis=2), wanted)


@pytest.mark.parametrize("fault", ["none", "result", "nan", "pages"])
@pytest.mark.parametrize(
    "case", [decode(SMALL, 3, 21), mixed(SMALL, 2, 13, 9), decode(LATENT, 2, 21)], ids=lambda case: case.name
)
def test_attention_that_is_wrong_is_not_timed(case: Any, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.attend_once

    def attend(case: Any, backend: str, *others: Any) -> Any:
        pages, out = right(case, "xla", *others)
        if backend == "xla":
            return pages, out
        added = {"result": 0.1, "nan": jnp.nan}.get(fault, 0) * abs(out).max()
        return (pages.at[..., -1, 0].set(3) if fault == "pages" else pages), out.at[0, 0, 0].add(added)

    monkeypatch.setattr(attention, "attend_once", attend)
    layout = KVLayout.LATENT if case.model.latent else KVLayout.TOKENS
    if fault == "none":
        attention.check_attention(case, "other", layout, 8, "float32")
    else:
        with pytest.raises(ValueError, match=f"the {'pages' if fault == 'pages' else 'attention'} of other are wrong"):
            attention.check_attention(case, "other", layout, 8, "float32")


@pytest.mark.parity
@pytest.mark.parametrize(
    "case", [decode(SMALL, 3, 40), verify(SMALL, 2, 300), mixed(SMALL, 2, 40, 20), prefill(SMALL, 2, 30)],
    ids=lambda case: case.name,
)  # fmt: skip
def test_transformers_attends_to_the_slots_of_each_row_and_writes_the_new(case: Any) -> None:
    pytest.importorskip("transformers")
    step = transformers_peer.make_step(case, 2, "cpu", "float32")
    out = np.asarray(transformers_peer.attend_by(SMALL, step)(1))[0]
    q, k = (np.asarray(each[0].transpose(0, 1)) for each in (step.q, step.k))
    k_slots, v_slots, write = np.asarray(step.k_slots[1]), np.asarray(step.v_slots[1]), np.asarray(step.write)
    np.testing.assert_array_equal(k_slots[write], k)
    slots, token = np.asarray(step.read if step.read.numel() else step.write), 0
    for start, count in case.lengths:
        mine, slots = slots[: start + count], slots[start + count :]
        for within in range(count):
            seen = mine[: start + within + 1]
            keys, values = (side[seen][None] for side in (k_slots, v_slots))
            want = gathered(q[token][None], keys, values, np.zeros((1, 1), int), [len(seen)], 8**-0.5)[0]
            np.testing.assert_allclose(out[token], want, atol=1e-5)
            token += 1
    chain = transformers_peer.paged_chain(case, 2, 3, "cpu", "float32")
    assert chain.run(chain.state) is None
