"""torch's scaled_dot_product_attention on a CPU, on the same shapes.

It is given less to do: keys and values lie side by side for each row, gathered beforehand, and nothing is written. So
it is what attention costs there without paging.
"""

import os
from collections.abc import Callable
from typing import Any

from benchmarks.kernel_bench.cases import AttentionCase, ModelShape, Row
from benchmarks.kernel_bench.timing import Chain

Call = Callable[[int], Any]


def torch_makers(case: AttentionCase, layers: int, calls: int) -> dict[str, Callable[[], Chain]]:
    """Ways to ask torch for it: with grouped heads; and, as it may be faster, with a row's query group as tokens.

    Latent attention only in the second way: for the first torch has no kernel, and makes 16 copies of the keys.
    Empty where torch is not installed. float32, as many threads as there are cores.
    """
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(os.cpu_count() or 1)
    made: dict[str, Callable[[], Chain]] = {}
    if not case.model.latent:
        made["torch"] = lambda: _chain(case, layers, calls, packed=False)
    if case.kind != "prefill":
        made["torch packed"] = lambda: _chain(case, layers, calls, packed=True)
    return made


def _chain(case: AttentionCase, layers: int, calls: int, packed: bool) -> Chain:
    import torch

    lengths = case.lengths
    groups = [(row, lengths.count(row)) for row in dict.fromkeys(lengths)]
    parts = [_part(case.model, row, count, layers, packed and row.count <= case.short_len) for row, count in groups]

    def run(state: None) -> None:
        with torch.inference_mode():
            for index in range(calls):
                for part in parts:
                    part(index % layers)

    return Chain(run, None, calls)


def _part(model: ModelShape, row: Row, rows: int, layers: int, packed: bool) -> Call:
    """Rows of one length: [rows, heads, tokens, D]. What lies behind a window is left out of K and V."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    first = 0 if model.window is None else max(row.start - model.window + 1, 0)
    keys, group = row.start + row.count - first, model.q_heads // model.kv_heads
    k = torch.randn(layers, rows, model.kv_heads, keys, model.key_dim)
    v = k[..., : model.value_dim] if model.latent else torch.randn(*k.shape[:-1], model.value_dim)
    mask = _mask(keys, row.count, model.window)
    causal = row.count == keys and mask is not None and (model.window is None or model.window >= keys)
    if packed:
        q = torch.randn(rows, model.kv_heads, group * row.count, model.key_dim)
        mask = None if mask is None else mask.repeat(group, 1)
        return lambda layer: scaled_dot_product_attention(q, k[layer], v[layer], attn_mask=mask)
    q = torch.randn(rows, model.q_heads, row.count, model.key_dim)
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
