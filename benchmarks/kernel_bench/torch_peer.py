"""torch's scaled_dot_product_attention on the same shapes, on a CPU and on a GPU.

It is given less to do: keys and values lie side by side for each row, gathered beforehand, and nothing is written. So
it is what attention costs there without paging. On a GPU the calls of a dispatch are one CUDA graph: no call waits for
Python.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from benchmarks.kernel_bench.cases import AttentionCase, ModelShape, Row
from benchmarks.kernel_bench.peers import Makers, Peers, no_torch, without
from benchmarks.kernel_bench.timing import Chain

Call = Callable[[int], Any]


class Place(NamedTuple):
    """Device and dtype of tensors, by torch's names."""

    device: str
    dtype: str


def torch_peers(case: AttentionCase, platform: str, layers: int, calls: int, dtype: str) -> Peers:
    """Ways to ask torch for it: with grouped heads; and, as it may be faster, with a row's query group as tokens.

    Latent attention only in the second way: for the first torch has no kernel, and makes 16 copies of the keys.
    On a CPU in float32 alone, with as many threads as there are cores.
    """
    if reason := no_torch(platform):
        return without("torch", reason)
    if platform == "cpu" and dtype != "float32":
        return without("torch", "it is timed on a CPU in float32 alone")
    place = Place("cuda" if platform == "gpu" else "cpu", dtype)
    made: Makers = {}
    if not case.model.latent:
        made["torch"] = lambda: _chain(case, layers, calls, place, packed=False)
    if case.kind != "prefill":
        made["torch packed"] = lambda: _chain(case, layers, calls, place, packed=True)
    return Peers(made, {})


def torch_chain(once: Callable[[int], Any], calls: int, device: str) -> Chain:
    """`once(0)` to `once(calls - 1)`, on a GPU as one graph."""
    import torch

    torch.set_num_threads(os.cpu_count() or 1)

    def work(state: None = None) -> None:
        with torch.inference_mode():
            for index in range(calls):
                once(index)

    return Chain(work if device == "cpu" else _captured(work), None, calls)


def _captured(work: Callable[[], None]) -> Callable[[None], None]:
    """Runs it once on a stream of its own, as CUDA graphs ask for, then makes a graph of it."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()

    def run(state: None) -> None:
        graph.replay()
        torch.cuda.synchronize()

    return run


def _chain(case: AttentionCase, layers: int, calls: int, place: Place, packed: bool) -> Chain:
    lengths = case.lengths
    groups = [(row, lengths.count(row)) for row in dict.fromkeys(lengths)]
    parts = [
        _part(case.model, row, count, layers, place, packed and row.count <= case.short_len) for row, count in groups
    ]

    def once(index: int) -> None:
        for part in parts:
            part(index % layers)

    return torch_chain(once, calls, place.device)


def _part(model: ModelShape, row: Row, rows: int, layers: int, place: Place, packed: bool) -> Call:
    """Rows of one length: [rows, heads, tokens, D]. What lies behind a window is left out of K and V."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    draw = partial(torch.randn, device=place.device, dtype=getattr(torch, place.dtype))
    first = 0 if model.window is None else max(row.start - model.window + 1, 0)
    keys, group = row.start + row.count - first, model.q_heads // model.kv_heads
    k = draw(layers, rows, model.kv_heads, keys, model.key_dim)
    v = k[..., : model.value_dim] if model.latent else draw(*k.shape[:-1], model.value_dim)
    mask = _mask(keys, row.count, model.window)
    mask = None if mask is None else mask.to(place.device)
    causal = row.count == keys and mask is not None and (model.window is None or model.window >= keys)
    if packed:
        q = draw(rows, model.kv_heads, group * row.count, model.key_dim)
        mask = None if mask is None else mask.repeat(group, 1)
        return lambda layer: scaled_dot_product_attention(q, k[layer], v[layer], attn_mask=mask)
    q = draw(rows, model.q_heads, row.count, model.key_dim)
    return lambda layer: scaled_dot_product_attention(
        q, k[layer], v[layer], attn_mask=None if causal else mask, is_causal=causal, enable_gqa=True
    )


def _mask(keys: int, tokens: int, window: int | None) -> Any:
    """[tokens, keys], True where the token sees the key; None where every token sees all."""
    import torch

    if tokens == 1:
        return None
    seen = torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens)
    return (
        seen if window is None else seen & torch.ones(tokens, keys, dtype=torch.bool).triu(keys - tokens - window + 1)
    )
