"""The Hub's tensors of a decoder, as sources over its leaves: what models/huggingface.py joins and sorts, undone."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from jaxinfer.checkpoint.formats.parts.stored import TensorPart
from jaxinfer.checkpoint.sources import Cut, Element, Joined, Merged, Sorted, Source, Turned
from jaxinfer.layers.vectors import layer_vectors
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.model_config.mlp_kind import ExpertsKind, MlpKind
from jaxinfer.quantization.scheme import Scheme

Leaf = Callable[[str, int | None, TensorPart], Source]
"""leaf(name, layer, part): a part of a weight, of one layer or outside of layers, as one device holds it."""
Made = Callable[[Source], Source]


class HubTensor(NamedTuple):
    """One tensor of values, or a matrix that a scheme holds. name: of the tensor of values. weight, layer: the leaf
    that it is part of. part: a part of it."""

    name: str
    weight: str
    layer: int | None
    part: Callable[[TensorPart], Source]
    scheme: Scheme | None = None
    is_matrix: bool = False

    @property
    def module(self) -> str:
        """The name without `.weight`."""
        return self.name.removesuffix(".weight")

    @property
    def values(self) -> Source:
        """Its values."""
        return self.part("weight")


def hub_tensors(config: DecoderConfig, leaf: Leaf) -> Iterator[HubTensor]:
    """All tensors of a decoder over no mesh, in the order of layers."""
    names = config.names
    yield _single("embed", f"{names.of_body(names.embed)}.weight", leaf)
    if config.learned_positions:
        yield _single("positions", f"{names.of_body(names.positions)}.weight", leaf)
    for layer in range(config.num_layers):
        yield from _Layer(config, layer, leaf).tensors()
    yield _single("norm", f"{names.of_body(names.norm)}.weight", leaf)
    if config.norm.bias:
        yield _single("norm_bias", f"{names.of_body(names.norm)}.bias", leaf)
    if not config.tie_word_embeddings:
        yield _single("table", f"{names.head}.weight", leaf)._replace(is_matrix=True)
        if config.head_bias:
            yield _single("table_bias", f"{names.head}.bias", leaf)


def _single(weight: str, name: str, leaf: Leaf) -> HubTensor:
    return HubTensor(name, weight, None, lambda part: leaf(weight, None, part))


class _Layer:
    """One layer's."""

    def __init__(self, config: DecoderConfig, layer: int, leaf: Leaf):
        self._layer, self._leaf, self._names = layer, leaf, config.names
        self._kind = config.layers[layer]
        self._prefix = config.names.of_body(f"{config.names.layers}{layer}.")
        self._vectors = layer_vectors(self._kind, config.hidden_size)

    def tensors(self) -> Iterator[HubTensor]:
        yield from self._norms()
        yield from self._qkv()
        yield from self._matrix("out", self._names.out, _as_it_is)
        if self._kind.mixer.sinks:
            yield self._tensor("sinks", self._names.sinks, lambda leaf: Merged(leaf, 0, 2))
        mlp = self._kind.mlp
        yield from self._with_experts(mlp) if isinstance(mlp, ExpertsKind) else self._mlp(mlp)

    def _norms(self) -> Iterator[HubTensor]:
        for name in self._vectors:
            weight, part = (name.removesuffix("_bias"), "bias") if name.endswith("_norm_bias") else (name, "weight")
            if weight in ("q_norm", "k_norm"):
                yield from self._head_norm(name, weight, part)
            elif weight.endswith("_norm"):
                yield self._tensor(name, f"{getattr(self._names, weight)}.{part}", _as_it_is)

    def _head_norm(self, name: str, weight: str, part: str) -> Iterator[HubTensor]:
        over, called = self._kind.mixer.qk_norm_over, getattr(self._names, weight)
        if over == "head":
            yield self._tensor(name, f"{called}.{part}", lambda leaf: self._unsorted(leaf, 0))
        elif over == "projection":
            yield self._tensor(name, f"{called}.{part}", lambda leaf: Merged(self._unsorted(leaf, 2), 0, 3))
        elif not called.endswith("."):
            yield self._tensor(name, f"{called}.{part}", lambda leaf: Merged(self._unsorted(leaf, 2), 0, 2))
        else:
            for head in range(_heads(self._vectors[name].shape)):
                made = _element(lambda leaf: Merged(self._unsorted(leaf, 2), 0, 2), head)
                yield self._tensor(name, f"{called}{head}.{part}", made)

    def _qkv(self) -> Iterator[HubTensor]:
        names, group = self._names, self._kind.mixer.group_size
        cuts = {"q": (0, group), "k": (group, group + 1), "v": (group + 1, group + 2)}

        def heads(leaf: Source, kind: str) -> Source:
            """[Hkv, heads of each, D, ...]."""
            cut = Cut(leaf, 1, *cuts[kind])
            return cut if kind == "v" else self._unsorted(cut, 2)

        def rows(kind: str) -> Made:
            return lambda leaf: Merged(heads(leaf, kind), 0, 3)

        if names.qkv is None:
            for kind in cuts:
                yield from self._matrix("qkv", getattr(names, kind), rows(kind))
        elif names.qkv_rows == "parts":
            yield from self._matrix("qkv", names.qkv, lambda leaf: Joined(tuple(rows(kind)(leaf) for kind in cuts)))
        else:
            each = lambda leaf: Joined(tuple(heads(leaf, kind) for kind in cuts), 1)  # noqa: E731
            yield from self._matrix("qkv", names.qkv, lambda leaf: Merged(each(leaf), 0, 3))

    def _mlp(self, mlp: MlpKind) -> Iterator[HubTensor]:
        names = self._names
        if not mlp.gated:
            yield from self._matrix("up", names.up, _as_it_is)
        else:
            yield from self._gate_up("gate_up", names.gate, names.up, names.gate_up)
        yield from self._matrix("down", names.down, _as_it_is)

    def _with_experts(self, experts: ExpertsKind) -> Iterator[HubTensor]:
        names = self._names
        yield from self._matrix("router", names.router, _as_it_is)
        if experts.router.choice_bias:
            yield self._tensor("choice_bias", names.choice_bias, _as_it_is)
        yield from self._each_gate_up(experts.count)
        yield from self._each_down(experts.count)
        if experts.shared:
            shared = names.shared_gate, names.shared_up, names.shared_gate_up
            yield from self._gate_up("shared_gate_up", *shared)
            yield from self._matrix("shared_down", names.shared_down, _as_it_is)
        if experts.shared_gate:
            yield from self._matrix("shared_router", names.shared_router, _as_it_is)

    def _each_gate_up(self, count: int) -> Iterator[HubTensor]:
        names = self._names
        if names.experts_gate_up is not None:
            yield from self._all_experts("experts_gate_up", names.experts_gate_up, self._fused)
            return
        for expert in range(count):
            for number, name in enumerate((names.expert_gate, names.expert_up)):
                made = _half(number, lambda leaf, expert=expert: Element(leaf, expert))
                yield from self._matrix("experts_gate_up", f"{names.experts}{expert}.{name}", made)

    def _each_down(self, count: int) -> Iterator[HubTensor]:
        names = self._names
        if names.experts_down is not None:
            yield from self._all_experts("experts_down", names.experts_down, _as_it_is)
            return
        for expert in range(count):
            name = f"{names.experts}{expert}.{names.expert_down}"
            yield from self._matrix("experts_down", name, _element(_as_it_is, expert))

    def _fused(self, leaf: Source) -> Source:
        """[E, ff / B, 2, B, ...] to [E, 2·ff, ...], gate before up or in turns."""
        order = (0, 1, 3, 2) if self._names.gate_up_rows == "turns" else (0, 2, 1, 3)
        return Merged(Turned(leaf, (*order, *range(4, len(leaf.shape)))), 1, 3)

    def _all_experts(self, weight: str, name: str, made: Made) -> Iterator[HubTensor]:
        """One tensor of all experts, which has no `.weight` in its name."""
        if f"{weight}_bias" in self._vectors:
            yield self._tensor(f"{weight}_bias", f"{name}_bias", made)
        turned = self._names.experts_columns_first
        yield self._tensor(weight, name, lambda leaf: Turned(made(leaf), (0, 2, 1)) if turned else made(leaf))._replace(
            scheme=getattr(self._kind.schemes, weight), is_matrix=True
        )

    def _gate_up(self, weight: str, gate: str, up: str, fused: str | None) -> Iterator[HubTensor]:
        gates, ups = _half(0, _as_it_is), _half(1, _as_it_is)
        if fused is not None:
            yield from self._matrix(weight, fused, lambda leaf: Joined((gates(leaf), ups(leaf))))
        else:
            yield from self._matrix(weight, gate, gates)
            yield from self._matrix(weight, up, ups)

    def _matrix(self, weight: str, name: str, made: Made) -> Iterator[HubTensor]:
        """A module: its matrix, and its bias where it has one."""
        scheme, turned = getattr(self._kind.schemes, weight, None), self._names.columns_first
        called, columns = f"{name}.weight", lambda leaf: Turned(made(leaf), (1, 0))
        tensor = self._tensor(weight, called, columns if turned else made)
        yield tensor._replace(scheme=scheme, is_matrix=True)
        if f"{weight}_bias" in self._vectors:
            yield self._tensor(f"{weight}_bias", f"{name}.bias", made)

    def _tensor(self, weight: str, name: str, made: Made) -> HubTensor:
        def part(part: TensorPart) -> Source:
            return made(self._leaf(weight, self._layer, part))

        return HubTensor(f"{self._prefix}{name}", weight, self._layer, part)

    def _unsorted(self, source: Source, axis: int) -> Source:
        """Channels of a head as neighbours again, where loading has sorted them into halves."""
        rope, dim = self._kind.mixer.rope, self._kind.mixer.head_dim
        if rope is None or not self._names.interleaved_rope:
            return source
        half = rope.turned(dim) // 2
        pairs = (channel for first in range(half) for channel in (first, first + half))
        return Sorted(source, axis, (*pairs, *range(2 * half, dim)))


def _as_it_is(leaf: Source) -> Source:
    return leaf


def _element(made: Made, number: int) -> Made:
    return lambda leaf: Element(made(leaf), number)


def _half(number: int, made: Made) -> Made:
    """Gate, 0, or up, 1, of [ff / B, 2, B, ...], as [ff, ...]."""
    return lambda leaf: Merged(Cut(made(leaf), 1, number, number + 1), 0, 3)


def _heads(shape: tuple[int, ...]) -> int:
    return shape[0] * shape[1]
