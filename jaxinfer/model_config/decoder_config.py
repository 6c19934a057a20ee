"""DecoderConfig: what one decoder-only model declares. Nothing here imports jax."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jaxinfer.checkpoint.formats.declared import Declared
from jaxinfer.errors import ModelError, ParameterError, quoted
from jaxinfer.model_config.layer_kind import KVKind, LayerKind, NormKind
from jaxinfer.model_config.rope_config import MAX_CONTEXT
from jaxinfer.model_config.tensor_names import TensorNames
from jaxinfer.quantization.kv import KVCodes, ScaledKVCodes
from jaxinfer.quantization.made import MADE
from jaxinfer.quantization.scheme import LayerSchemes, Scheme, TableSchemes


class LayerGroup(NamedTuple):
    """Layers that keep the same of tokens, and share a pool of KV blocks."""

    kv: KVKind
    layers: tuple[int, ...]

    @property
    def window(self) -> int | None:
        """Tokens that a token sees in its layers; None: all before it."""
        return self.kv.window


class Span(NamedTuple):
    """Layers of a whole decoder that a pipeline stage has. first: layers before them. total: layers of the whole."""

    first: int
    total: int


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder: sizes in elements, the kind of every layer, and what lies before and after them.

    max_position_embeddings: the longest context, stretched by rope scaling where the file declares the one before.
    embedding_scale: what embedded tokens are multiplied by. learned_positions: a table of embeddings for positions is
    added to them. logits_scale, logits_soft_cap: logits are multiplied, then become cap * tanh(logit / cap).
    head_bias: logits have one. eos_token_ids holds every id that ends a text. names: what checkpoints call the weights.
    tables: how embedding and head are held. declared: weights that are quantised in the checkpoint already, which
    `with_declared_schemes` gives their schemes. kv_scales: what a checkpoint calls the scales of a layer's keys and of
    its values, after the layer's number and a dot; None where it has none that fit what is kept. vocab_shards: the
    tables have rows of zeros behind their last ones, so that their number divides over as many devices. held: for a
    folder that holds leaves, how these are quantised, as `--quantization` or as the checkpoint that they were made of
    names it; None for safetensors. held_dtype: their type where they are not. held_kv_scales: the type that its scales
    of keys and values are for. span: of a stage of a pipeline, which has some of the layers; None: it has all.
    """

    vocab_size: int
    hidden_size: int
    max_position_embeddings: int
    layers: tuple[LayerKind, ...]
    norm: NormKind = field(default_factory=NormKind)
    embedding_scale: float = 1.0
    learned_positions: bool = False
    logits_scale: float = 1.0
    logits_soft_cap: float | None = None
    head_bias: bool = False
    tie_word_embeddings: bool = False
    bos_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    names: TensorNames = field(default_factory=TensorNames)
    tables: TableSchemes = field(default_factory=TableSchemes)
    declared: Declared | None = None
    kv_scales: tuple[str, str] | None = None
    vocab_shards: int = 1
    held: str | None = None
    held_dtype: str | None = None
    held_kv_scales: ScaledKVCodes | None = None
    span: Span | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_position_embeddings"):
            if getattr(self, name) < 1:
                raise ModelError(f"config.json: {name} must be at least 1, not {quoted(getattr(self, name))}")
        if not self.layers:
            raise ModelError("config.json: num_hidden_layers must be at least 1, not 0")
        if self.max_position_embeddings > MAX_CONTEXT:
            found = quoted(self.max_position_embeddings)
            raise ModelError(f"config.json: declares a context of {found} tokens; at most {MAX_CONTEXT} are supported")

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """Layers with experts."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.experts is not None)

    @property
    def embeds(self) -> bool:
        """The embedding is a part of it. True for a whole decoder, and for the first stage of a pipeline."""
        return self.span is None or self.span.first == 0

    @property
    def ends(self) -> bool:
        """The last norm and the head are a part of it. True for a whole decoder, and for a pipeline's last stage."""
        return self.span is None or self.span.first + self.num_layers == self.span.total

    def stage(self, first: int, last: int) -> "DecoderConfig":
        """The stage that has the layers from `first` to before `last`; itself where these are all."""
        if (first, last) == (0, self.num_layers):
            return self
        return replace(self, layers=self.layers[first:last], span=Span(first, self.num_layers))

    def at_context(self, length: int) -> "DecoderConfig":
        """The decoder for sequences of at most `length` tokens; differs for `longrope` only.

        Its factors are the long ones for every token where sequences may be longer than the original context, as in
        vLLM. transformers chooses anew for each forward, by its longest sequence.
        """

        def at_length(kind: LayerKind) -> LayerKind:
            rope = kind.mixer.rope
            if rope is None or rope.kind != "longrope":
                return kind
            rope = replace(rope, stretched=length > rope.original_max_position_embeddings)
            return replace(kind, mixer=replace(kind.mixer, rope=rope))

        return self.with_kinds(at_length)

    def with_kinds(self, change: Callable[[LayerKind], LayerKind]) -> "DecoderConfig":
        """Return the decoder with each kind of layer replaced by `change` of it."""
        kinds = {kind: change(kind) for kind in dict.fromkeys(self.layers)}
        return replace(self, layers=tuple(kinds[kind] for kind in self.layers))

    def quantised(self, name: str) -> "DecoderConfig":
        """Return the decoder with its weights quantised on loading as MADE[name]; `none`: they are held as they are in
        the checkpoint.

        A checkpoint that is quantised already is taken as it is if its layers have just these schemes. Raises
        ParameterError if they have others.
        """
        if name == "none" or name == self.held:
            return self
        if self.held is not None:
            how = f"{name}: the folder's leaves are held in {self.held}"
            raise ParameterError("quantization", f"{how}; leave it out, or convert the model with it")
        made = MADE[name]

        def held(kind: LayerKind) -> LayerKind:
            schemes = {name: made.of(depth) for name, depth in kind.depths(self.hidden_size).items()}
            return replace(kind, schemes=LayerSchemes(**schemes))

        quantised = self.with_kinds(held)
        if self.checkpoint_forms:
            if quantised.layers == self.layers:
                return self
            raise ParameterError(
                "quantization",
                f"{name}: the checkpoint is quantised already, in {self.checkpoint_forms}; leave it out",
            )
        return replace(quantised, tables=TableSchemes(made.tables, made.tables))

    def keeping(self, codes: KVCodes | None) -> "DecoderConfig":
        """Return the decoder with keys and values kept in `codes`; None: in the type of activations."""
        return self.with_kinds(lambda kind: replace(kind, mixer=replace(kind.mixer, kv_codes=codes)))

    def over(self, heads: int, vocabulary: int, experts: int = 1, redundant: int = 0) -> "DecoderConfig":
        """Return the decoder with heads split over `heads` devices and tables over `vocabulary` devices. If they do not
        divide evenly, KV heads are copied and query heads of zeros added (`AttentionKind.over`), and tables get rows
        that no token has. redundant: copies of each layer's experts, which are split over `experts` devices.

        Raises ParameterError for what cannot be split so.
        """
        spread = self.with_kinds(lambda kind: replace(kind, mixer=kind.mixer.over(heads)))
        for kind in dict.fromkeys(spread.layers):
            _check_columns(kind)
        spread = replace(spread, vocab_shards=vocabulary)
        if redundant and not self.expert_layers:
            raise ParameterError("redundant_experts", f"{redundant}: the model has no experts; 0 is allowed")
        return spread.with_kinds(lambda kind: _with_redundant(kind, redundant, experts)) if redundant else spread

    @property
    def table_shape(self) -> tuple[int, int]:
        """Shape of the embedding and of the head, [rows, hidden], including rows that no token has."""
        return -(-self.vocab_size // self.vocab_shards) * self.vocab_shards, self.hidden_size

    @property
    def head_scheme(self) -> Scheme | None:
        """Scheme of the matrix that gives logits; None if it is not quantised."""
        return self.tables.embed if self.tie_word_embeddings else self.tables.table

    @property
    def checkpoint_forms(self) -> str:
        """Names of the formats in which a checkpoint's or a folder's weights are quantised; empty where none is."""
        if self.held is not None:
            return "" if self.held == "none" else self.held
        return "" if self.declared is None else self.declared.forms

    def held_in(self, dtype: str) -> str:
        """Describe the types of the layers' matrices for people: their schemes, and `dtype` for those without one."""
        kinds = dict.fromkeys(self.layers)
        schemes = [getattr(kind.schemes, name) for kind in kinds for name in kind.depths(self.hidden_size)]
        return " and ".join(dict.fromkeys(dtype if scheme is None else str(scheme) for scheme in schemes))

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def kv_groups(self) -> tuple[LayerGroup, ...]:
        """Layers by what they keep, in the order in which that first occurs."""
        groups: dict[KVKind, list[int]] = {}
        for index, layer in enumerate(self.layers):
            groups.setdefault(layer.mixer.kv, []).append(index)
        return tuple(LayerGroup(kv, tuple(layers)) for kv, layers in groups.items())


def _with_redundant(kind: LayerKind, redundant: int, devices: int) -> LayerKind:
    return kind if kind.experts is None else replace(kind, mlp=kind.experts.with_redundant(redundant, devices))


def _check_columns(kind: LayerKind) -> None:
    """Raises ParameterError where columns of zeros would lie among those of one scale, or have no place in an order."""
    scheme, attention = kind.schemes.out, kind.mixer
    if scheme is None or attention.spread is None or not attention.spread.padded:
        return
    if scheme.ordered or attention.head_dim % (scheme.group or 1):
        held = "whose columns are in another order" if scheme.ordered else f"in groups of {scheme.group}"
        raise ParameterError(
            "mesh",
            f"{attention.spread.query_heads} query heads of {attention.head_dim} channels, with output weights {held}, "
            "do not divide over the devices: heads of zeros cannot be added",
        )
