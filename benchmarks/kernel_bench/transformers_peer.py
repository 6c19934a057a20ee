"""Time the attention of transformers' continuous batching without flash-attn: its paged `sdpa` path.

New keys and values are copied to their slots, all slots that the step reads are gathered into one run of keys for all
rows together, and scaled_dot_product_attention goes over it under a mask that keeps rows apart. Its own function is
called; only the cache is this file's, with the operations of its `update` (index_copy_, index_select) on the same
shapes: its own needs a model and a scheduler. The indices and the mask are computed outside of the timed call, as its
scheduler computes them once for all layers. With flash-attn it would read pages in place; that needs a package, or the
network, and is not compared here.
"""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from benchmarks.kernel_bench.cases import AttentionCase, ModelShape
from benchmarks.kernel_bench.peers import Peers, no_torch, not_for, without
from benchmarks.kernel_bench.timing import Chain
from benchmarks.kernel_bench.torch_peer import torch_chain

_PAGE = 256
"""Tokens of a page, its default."""


class Step(NamedTuple):
    """Tensors of one step. q, k, v: [1, heads, T, D]. k_slots, v_slots: a [slots, Hkv, D] each layer.

    read: slots that hold each row's keys, rows one behind the other; none where all rows are whole prompts, whose keys
    are all new. write: slots of the new tokens. mask: [1, 1, T, keys], added.
    """

    q: Any
    k: Any
    v: Any
    k_slots: list[Any]
    v_slots: list[Any]
    read: Any
    write: Any
    mask: Any


def transformers_peers(case: AttentionCase, platform: str, layers: int, calls: int, dtype: str) -> Peers:
    """`transformers paged`, on a GPU."""
    name = "transformers paged"
    if platform != "gpu":
        return without(name, f"it is timed on a GPU, and JAX runs on {platform}")
    if reason := no_torch(platform) or _not_installed():
        return without(name, reason)
    model = case.model
    if model.latent or model.window is not None or model.key_dim != model.value_dim:
        return not_for(name, case, "models with latent attention, a window or values of another size are not compared")
    return Peers({name: lambda: paged_chain(case, layers, calls, "cuda", dtype)}, {})


def paged_chain(case: AttentionCase, layers: int, calls: int, device: str, dtype: str) -> Chain:
    """Calls over `layers` layers in turn."""
    step = make_step(case, layers, device, dtype)
    attend = attend_by(case.model, step)
    return torch_chain(lambda index: attend(index % layers), calls, device)


def attend_by(model: ModelShape, step: Step) -> Callable[[int], Any]:
    """A call of a layer: [1, T, Hq, D]."""
    function, runs_of_tokens = _function()
    cache, group = _cache(step, runs_of_tokens), model.q_heads // model.kv_heads
    # What continuous batching hands over with the cache; this file's cache has the indices itself.
    given = {"scaling": model.key_dim**-0.5, "cache": cache, "read_index": [step.read], "write_index": [step.write]}

    def attend(layer: int) -> Any:
        module = SimpleNamespace(num_key_value_groups=group, layer_idx=layer, is_causal=True)
        return function(module, step.q, step.k, step.v, step.mask, **given)[0]

    return attend


def make_step(case: AttentionCase, layers: int, device: str, dtype: str) -> Step:
    """Random values, pages in any order."""
    import torch

    kind, model = getattr(torch, dtype), case.model
    lengths, width = case.lengths, max(-(-(row.start + row.count) // _PAGE) for row in case.lengths)
    table = np.random.default_rng(0).permutation(len(lengths) * width).reshape(len(lengths), width)
    slots = [
        pages[position // _PAGE] * _PAGE + position % _PAGE
        for row, pages in zip(lengths, table, strict=True)
        for position in [np.arange(row.start + row.count)]
    ]
    write = [row_slots[row.start :] for row, row_slots in zip(lengths, slots, strict=True)]
    tokens, size = sum(row.count for row in lengths), (table.size * _PAGE, model.kv_heads, model.key_dim)

    def draw(*shape: int) -> Any:
        return torch.randn(*shape, device=device, dtype=kind)

    def index(parts: list[np.ndarray]) -> Any:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    q, k, v = (draw(1, heads, tokens, model.key_dim) for heads in (model.q_heads, model.kv_heads, model.kv_heads))
    k_slots, v_slots = ([draw(*size) for _ in range(layers)] for _ in range(2))
    read = index(slots) if any(row.start for row in lengths) else index([np.zeros(0, int)])
    return Step(q, k, v, k_slots, v_slots, read, index(write), _mask(case, device, kind))


def _mask(case: AttentionCase, device: str, kind: Any) -> Any:
    """0 where a token sees a key, the least number elsewhere."""
    import torch

    blocks = [torch.ones(row.count, row.start + row.count, dtype=torch.bool).tril(row.start) for row in case.lengths]
    seen = torch.block_diag(*blocks).bool().to(device)
    return torch.zeros(seen.shape, device=device, dtype=kind).masked_fill_(~seen, torch.finfo(kind).min)[None, None]


def _cache(step: Step, runs_of_tokens: bool) -> Any:
    """runs_of_tokens: it gives back [keys, Hkv, D], and not [1, Hkv, keys, D]."""
    import torch
    from transformers.generation.continuous_batching import PagedAttentionCache

    class Cache(PagedAttentionCache):
        """Keys and values of the bench's own making, behind the one method that attention calls."""

        def __init__(self) -> None: ...

        def update(self, key_states: Any, value_states: Any, layer_idx: int, **_: Any) -> tuple[Any, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
            k, v = kept(key_states, step.k_slots[layer_idx]), kept(value_states, step.v_slots[layer_idx])
            return k, v

    def kept(new: Any, slots: Any) -> Any:
        new = new.squeeze(0).transpose(0, 1)
        slots.index_copy_(0, step.write, new)
        keys = torch.index_select(slots, 0, step.read) if step.read.numel() else new
        return keys if runs_of_tokens else keys.transpose(0, 1).unsqueeze(0)

    return Cache()


def _function() -> tuple[Any, bool]:
    """It, and whether its cache gives back runs of tokens: older versions have a function of its own for pages."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if "cache" in inspect.signature(sdpa_attention_forward).parameters:
        return sdpa_attention_forward, False
    from transformers.integrations.sdpa_paged import sdpa_attention_paged_forward

    return sdpa_attention_paged_forward, True


def _not_installed() -> str | None:
    try:
        _function()
        from transformers.generation.continuous_batching import PagedAttentionCache
    except ImportError as error:
        return f"transformers has no paged attention here: {error}"
    del PagedAttentionCache
    return None
