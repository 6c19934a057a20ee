"""A decoder's weights in Hugging Face checkpoints: which tensors each is made of, by the family's TensorNames."""

import itertools
from collections.abc import Sequence

from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.parts.stored import TensorPart
from jaxinfer.checkpoint.formats.settings.unused import KV_SCALES
from jaxinfer.checkpoint.safetensors import Unused
from jaxinfer.checkpoint.sources import Cut, Joined, Padded, Placed, Sorted, Source, Split, Stacked, Tensor, Turned
from jaxinfer.layers.mlp import gate_up_block
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.head_spread import Order
from jaxinfer.model_config.mlp_kind import ExpertsKind
from jaxinfer.models.column_orders import head_order, layer_order
from jaxinfer.models.head_places import columns_by_head
from jaxinfer.models.kv_scales import kv_scale

Path = tuple[str | int, ...]


def unused_tensors(config: DecoderConfig) -> Unused:
    """Return the tensors that a checkpoint may hold although the model has no use for them."""
    names, declared = config.names, config.declared
    begins = (*names.skipped, *((f"{names.head}.",) if config.tie_word_embeddings else ()))
    return Unused(begins, KV_SCALES) if declared is None else Unused(begins, declared.unused, declared.zeros)


def embedding_table(config: DecoderConfig) -> Tensor:
    """The embedding of tokens."""
    return Tensor(f"{config.names.of_body(config.names.embed)}.weight", (config.vocab_size, config.hidden_size))


def head_table(config: DecoderConfig) -> Tensor:
    """The output matrix, where the checkpoint has one."""
    return Tensor(f"{config.names.head}.weight", (config.vocab_size, config.hidden_size))


def weight_sources(
    config: DecoderConfig, path: Path, layers: Sequence[int] | None, part: TensorPart = "weight"
) -> list[Source]:
    """The sources of the weight at `path` of a Decoder or Head: one, or for weights of layers one for each of them.

    part: `weight` for its values, or a part of one that the checkpoint holds quantised.
    """
    name = "_".join(str(part) for part in path[-2:]) if "shared" in path else str(path[-1])
    return [weight_source(config, name, layer, part) for layer in layers or (None,)]


def weight_source(config: DecoderConfig, name: str, layer: int | None, part: TensorPart = "weight") -> Source:
    """The source of one layer's weight, or of one outside of layers, by the name that it has in its module."""
    if layer is None:
        return head_order(config) if part == "order" else _single(config, name, part)
    return layer_order(config, layer, name) if part == "order" else LayerTensors(config, layer).source(name, part)


def _single(config: DecoderConfig, name: str, part: TensorPart) -> Source:
    names, hidden = config.names, config.hidden_size
    head = config.declared.of_head() if config.declared is not None and name == "table" else None
    if head is not None:
        return _rows(config, head.parts(names.head, (config.vocab_size, hidden)).source(part))
    singles: dict[str, Source] = {
        "embed": _rows(config, embedding_table(config)),
        "table": _rows(config, head_table(config)),
        "table_bias": _rows(config, Tensor(f"{names.head}.bias", (config.vocab_size,))),
        "positions": Tensor(f"{names.of_body(names.positions)}.weight", (config.max_position_embeddings, hidden)),
        "norm": Tensor(f"{names.of_body(names.norm)}.weight", (hidden,)),
        "norm_bias": Tensor(f"{names.of_body(names.norm)}.bias", (hidden,)),
    }
    return singles[name]


def _rows(config: DecoderConfig, table: Source) -> Source:
    """A table, or its bias, with the rows that no token has."""
    rows = config.table_shape[0]
    return table if rows == config.vocab_size else Padded(table, 0, rows)


class LayerTensors:
    """The sources of one layer's weights; each has the shape that layers/block.py and layers/vectors.py declare."""

    def __init__(self, config: DecoderConfig, layer: int):
        self._config = config
        self._names = config.names
        self._module = f"{config.names.layers}{layer}."
        self._prefix = config.names.of_body(self._module)
        self._hidden = config.hidden_size
        self._kind = config.layers[layer]
        self._declared = config.declared

    def source(self, name: str, part: TensorPart = "weight") -> Source:
        """The weight, or a part of it, that a block or the vectors call so."""
        if name.endswith("_bias") and name != "choice_bias":
            name, part = name.removesuffix("_bias"), "bias"
        if name in ("q_norm", "k_norm"):
            return self._head_norm(name, part)
        if name.endswith("_norm"):
            return self._tensor(f"{getattr(self._names, name)}.{part}", self._hidden)
        return getattr(self, name)(part)

    def qkv(self, part: TensorPart) -> Source:
        """[Hkv, G + 2, D, columns], or the bias without the last axis."""
        names, spread, dim = self._names, self._kind.mixer.places, self._kind.mixer.head_dim
        columns = self._qkv_columns()
        if names.qkv is not None and names.qkv_rows == "heads":
            rows = spread.kv_heads * (spread.own_group_size + 2)
            whole = self._placed(self._product(names.qkv, rows * dim, part, columns), spread.fused_order)
            return self._halves(whole, 2)
        heads = {"q": spread.query_heads, "k": spread.kv_heads, "v": spread.kv_heads}
        if names.qkv is None:
            parts = {kind: self._product(getattr(names, kind), n * dim, part, columns) for kind, n in heads.items()}
        else:
            ends = list(itertools.accumulate(n * dim for n in heads.values()))
            whole = self._product(names.qkv, ends[-1], part, columns)
            cuts = zip(heads, [0, *ends], ends, strict=False)
            parts = {kind: Cut(whole, 0, start, stop) for kind, start, stop in cuts}
        orders = {"q": spread.query_order, "k": spread.kv_order, "v": spread.kv_order}
        q, k, v = (self._placed(source, orders[kind]) for kind, source in parts.items())
        return Joined((self._halves(q, 2), self._halves(k, 2), v), axis=1)

    def _qkv_columns(self) -> int:
        """Columns of q, k and v."""
        return self._hidden

    def out(self, part: TensorPart) -> Source:
        """[hidden, Hq·D]."""
        spread = self._kind.mixer.places
        whole = self._product(self._names.out, self._hidden, part, spread.query_heads * self._kind.mixer.head_dim)
        return columns_by_head(whole, spread)

    def sinks(self, part: TensorPart) -> Source:
        """[Hkv, G]. A head of zeros has one of 0."""
        spread = self._kind.mixer.places
        return self._by_kv_head(self._tensor(self._names.sinks, spread.query_heads), spread.query_order)

    def kv_scale(self, part: TensorPart) -> Source:
        """[2]."""
        return kv_scale(self._config, self._prefix)

    def gate_up(self, part: TensorPart) -> Source:
        """[ff / B, 2, B, hidden]."""
        names = self._names
        return self._pair(names.gate_up, (names.gate, names.up), self._kind.mlp.size, part)

    def up(self, part: TensorPart) -> Source:
        """[ff, hidden], of an MLP without a gate."""
        return self._product(self._names.up, self._kind.mlp.size, part)

    def down(self, part: TensorPart) -> Source:
        """[hidden, ff]."""
        return self._product(self._names.down, self._hidden, part, self._kind.mlp.size)

    def router(self, part: TensorPart) -> Source:
        """[E, hidden]."""
        return self._router(self._names.router, self._experts.count, part)

    def choice_bias(self, part: TensorPart) -> Source:
        """[E]."""
        return self._tensor(self._names.choice_bias, self._experts.count)

    def experts_gate_up(self, part: TensorPart) -> Source:
        """[E, ff / B, 2, B, hidden]."""
        names, experts = self._names, self._experts
        if names.experts_gate_up is not None:
            return self._fused_experts(names.experts_gate_up, part)
        pairs = [self._expert_names(i, names.expert_gate, names.expert_up) for i in range(experts.count)]
        return Stacked([self._pair(None, pair, experts.size, part) for pair in pairs])

    def experts_down(self, part: TensorPart) -> Source:
        """[E, hidden, ff]."""
        names, experts = self._names, self._experts
        if names.experts_down is None:
            each = [self._expert_names(i, names.expert_down)[0] for i in range(experts.count)]
            return Stacked([self._product(name, self._hidden, part, experts.size) for name in each])
        if part == "bias":
            return self._tensor(f"{names.experts_down}_bias", experts.count, self._hidden)
        return self._all_experts(names.experts_down, (self._hidden, experts.size), part)

    def shared_gate_up(self, part: TensorPart) -> Source:
        """[ff / B, 2, B, hidden]."""
        names = self._names
        return self._pair(names.shared_gate_up, (names.shared_gate, names.shared_up), self._experts.shared, part)

    def shared_down(self, part: TensorPart) -> Source:
        """[hidden, ff]."""
        return self._product(self._names.shared_down, self._hidden, part, self._experts.shared)

    def shared_router(self, part: TensorPart) -> Source:
        """[1, hidden]."""
        return self._router(self._names.shared_router, 1, part)

    @property
    def _experts(self) -> ExpertsKind:
        assert self._kind.experts is not None
        return self._kind.experts

    def _tensor(self, name: str, *shape: int) -> Tensor:
        return Tensor(f"{self._prefix}{name}", shape)

    def _product(self, name: str, rows: int, part: TensorPart, columns: int | None = None) -> Source:
        """A matrix [rows, columns], by default of as many columns as the hidden state has, or its bias [rows]."""
        form = self._declared.of_matrix(f"{self._module}{name}") if self._declared is not None else None
        return self._matrix(form, name, (rows, columns or self._hidden), part)

    def _router(self, name: str, rows: int, part: TensorPart) -> Source:
        """A matrix [rows, hidden] that is never held quantised, or its bias [rows]."""
        form = self._declared.of_router(f"{self._module}{name}") if self._declared is not None else None
        return self._matrix(form, name, (rows, self._hidden), part)

    def _matrix(self, form: TensorFormat | None, name: str, shape: tuple[int, int], part: TensorPart) -> Source:
        rows, columns = shape
        if part == "bias":
            return self._tensor(f"{name}.bias", rows)
        if form is not None:
            return form.parts(f"{self._prefix}{name}", shape).source(part)
        if self._names.columns_first:
            return Turned(self._tensor(f"{name}.weight", columns, rows), (1, 0))
        return self._tensor(f"{name}.weight", rows, columns)

    def _pair(self, fused: str | None, names: Sequence[str], size: int, part: TensorPart) -> Source:
        """[size / B, 2, B, hidden], of one tensor or of two."""
        if fused is None:
            halves = [self._product(name, size, part) for name in names]
        else:
            whole = self._product(fused, 2 * size, part)
            halves = [Cut(whole, 0, start, start + size) for start in (0, size)]
        block = gate_up_block(size)
        return Joined(tuple(_split_rows(half, (size // block, 1, block)) for half in halves), axis=1)

    def _fused_experts(self, name: str, part: TensorPart) -> Source:
        """All experts' gate and up in one tensor: rows or columns, gate before up or in turns."""
        count, size, turns = self._experts.count, self._experts.size, self._names.gate_up_rows == "turns"
        block = gate_up_block(size)
        rows = (size // block, block, 2) if turns else (2, size // block, block)
        order = (0, 2, 1) if turns else (1, 0, 2)  # of the rows' axes, to make them [ff / B, 2, B]
        if part == "bias":
            split = Split(self._tensor(f"{name}_bias", count, 2 * size), ((count,), rows))
            return Turned(split, (0, *(1 + axis for axis in order)))
        whole = self._all_experts(name, (2 * size, self._hidden), part)
        split = Split(whole, ((count,), rows, whole.shape[2:]))
        return Turned(split, (0, *(1 + axis for axis in order), 4))

    def _all_experts(self, name: str, shape: tuple[int, int], part: TensorPart) -> Source:
        """[E, rows, columns], one tensor, which has no `.weight` in its name (gpt-oss). shape: rows and columns."""
        count, (rows, columns) = self._experts.count, shape
        form = self._declared.of_experts(f"{self._module}{name}") if self._declared is not None else None
        if form is not None:
            return form.parts(f"{self._prefix}{name}", (count, rows, columns)).source(part)
        if self._names.experts_columns_first:
            return Turned(self._tensor(name, count, columns, rows), (0, 2, 1))
        return self._tensor(name, count, rows, columns)

    def _expert_names(self, expert: int, *names: str) -> list[str]:
        return [f"{self._names.experts}{expert}.{name}" for name in names]

    def _head_norm(self, name: str, part: TensorPart) -> Source:
        """[D], or [Hkv, G, D] of q and [Hkv, 1, D] of k."""
        attention, dim = self._kind.mixer, self._kind.mixer.head_dim
        tensor = f"{getattr(self._names, name)}.{part}"
        if attention.qk_norm_over == "head":
            return self._halves(self._tensor(tensor, dim), 0)
        spread = attention.places
        heads, order = spread.query_heads, spread.query_order
        if name == "k_norm":
            heads, order = spread.kv_heads, spread.kv_order
        if attention.qk_norm_over == "heads":
            return self._halves(self._by_kv_head(self._each_head(name, part, heads, dim), order), 2)
        return self._halves(self._placed(self._tensor(tensor, heads * dim), order), 2)

    def _placed(self, rows: Source, order: Order) -> Source:
        """Rows [n·D, ...] of heads, in the places of `order`, as [Hkv, heads of each, D, ...]."""
        dim = self._kind.mixer.head_dim
        return self._by_kv_head(_split_rows(rows, (rows.shape[0] // dim, dim)), order)

    def _by_kv_head(self, heads: Source, order: Order) -> Source:
        """Heads [n, ...] in the places of `order`, as [Hkv, heads of each, ...]."""
        groups = self._kind.mixer.num_kv_heads
        there = heads if order == tuple(range(heads.shape[0])) else Placed(heads, 0, order)
        return _split_rows(there, (groups, len(order) // groups))

    def _each_head(self, name: str, part: TensorPart, heads: int, dim: int) -> Source:
        """[heads, D], from one tensor or from one for each head."""
        tensor = getattr(self._names, name)
        if not tensor.endswith("."):
            return self._tensor(f"{tensor}.{part}", heads, dim)
        return Stacked([self._tensor(f"{tensor}{head}.{part}", dim) for head in range(heads)])

    def _halves(self, source: Source, axis: int) -> Source:
        """Channels of a head sorted such that those that turn together lie half of them apart."""
        rope, dim = self._kind.mixer.rope, self._kind.mixer.head_dim
        if rope is None or not self._names.interleaved_rope:
            return source
        turned = rope.turned(dim)
        order = (*range(0, turned, 2), *range(1, turned, 2), *range(turned, dim))
        return Sorted(source, axis, order)


def _split_rows(source: Source, rows: tuple[int, ...]) -> Source:
    """The first axis split into `rows`, the others as they are."""
    return Split(source, (rows, *((length,) for length in source.shape[1:])))
