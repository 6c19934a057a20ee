"""Cases: what one call of a kernel is given, in the shapes of models that people serve."""

from typing import Literal, NamedTuple

Kind = Literal["decode", "verify", "prefill", "mixed"]
Codes = Literal["int8", "int4", "e4m3", "e2m1"]
VERIFIED = 4
"""Tokens a row where drafts are verified: K drafts and the token after them."""


class ModelShape(NamedTuple):
    """Heads of a layer's attention that one device has.

    window: keys a token sees, None for all. latent: multi-head latent attention with absorbed projections; one key for
    all heads, whose beginning is the value.
    """

    name: str
    q_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    latent: bool = False

    @property
    def kept(self) -> int:
        """Values that pages hold of a token."""
        return self.key_dim if self.latent else self.kv_heads * (self.key_dim + self.value_dim)


QWEN3 = ModelShape("Qwen3-0.6B", 16, 8, 128, 128)
LLAMA_8B = ModelShape("Llama-3.1-8B", 32, 8, 128, 128)
LLAMA_70B = ModelShape("Llama-3.1-70B/TP8", 8, 1, 128, 128)
GEMMA = ModelShape("Gemma-3-12B local", 16, 8, 256, 256, 1024)
DEEPSEEK = ModelShape("DeepSeek-V3/TP8", 16, 16, 192, 128)
DEEPSEEK_LATENT = ModelShape("DeepSeek-V3/TP8 latent", 16, 1, 576, 512, latent=True)
MODELS = (QWEN3, LLAMA_8B, LLAMA_70B, GEMMA, DEEPSEEK, DEEPSEEK_LATENT)


class Row(NamedTuple):
    """`count` tokens, the first at position `start`: so many are cached."""

    start: int
    count: int


class AttentionCase(NamedTuple):
    """One call over `rows` rows of `context` tokens, of which `new` are this step's; the others are in pages.

    mixed: `rows` rows of one new token, and after them the first `new` tokens of a prompt.
    """

    model: ModelShape
    kind: Kind
    rows: int
    context: int
    new: int

    @property
    def name(self) -> str:
        size = f"{self.rows} x {self.context}"
        match self.kind:
            case "mixed":
                size += f" and a prompt of {self.new}"
            case "prefill" if self.new < self.context:
                size += f", the last {self.new}"
        return f"{self.model.name} {self.kind} {size}"

    @property
    def lengths(self) -> list[Row]:
        """All rows, short ones first."""
        if self.kind == "mixed":
            return [Row(self.context - 1, 1)] * self.rows + [Row(0, self.new)]
        return [Row(self.context - self.new, self.new)] * self.rows

    @property
    def short_rows(self) -> int:
        """Number of rows that hold at most `short_len` tokens."""
        return 0 if self.kind == "prefill" else self.rows

    @property
    def short_len(self) -> int:
        return VERIFIED if self.kind == "verify" else 1


class MatmulCase(NamedTuple):
    """`tokens` rows through a matrix of [inner, hidden] and back through one of [hidden, inner], as in an MLP.

    weights: the type of their codes, or `plain` for the bench's own type. group: values of the contracted axis that
    share a scale, None for one a channel. experts, chosen: of a mixture, 0 experts for a plain MLP. rounded: rows are
    rounded to the codes' type before each product, as part of the call; its roof is that of the bench's own type.
    """

    model: str
    tokens: int
    hidden: int
    inner: int
    weights: Codes | Literal["plain"]
    group: int | None = None
    experts: int = 0
    chosen: int = 1
    rounded: bool = False

    @property
    def kind(self) -> str:
        return "grouped" if self.experts else "quantized"

    @property
    def scales(self) -> Literal["float32", "float8_e8m0fnu", "float8_e4m3fn"]:
        """Their type: with e2m1 that of MXFP4 in groups of 32, of NVFP4 in others."""
        if self.weights != "e2m1":
            return "float32"
        return "float8_e8m0fnu" if self.group == 32 else "float8_e4m3fn"

    @property
    def name(self) -> str:
        forms = [f"{self.experts} experts"] if self.experts else []
        each = f"/{self.group}" if self.weights == "e2m1" else ""
        forms += [] if self.weights == "plain" else [f"{self.weights}{each}" + self.rounded * f" x {self.weights}"]
        return f"{self.model} {self.kind} {self.tokens} x {self.hidden} x {self.inner}, {' in '.join(forms)}"


class WriteCase(NamedTuple):
    """`new` keys and values of each of `rows` rows to the pages of a layer, which hold `dtype`; they come in it."""

    model: ModelShape
    rows: int
    new: int
    dtype: str

    @property
    def kind(self) -> str:
        return "kv_write"

    @property
    def tokens(self) -> int:
        return self.rows * self.new

    @property
    def name(self) -> str:
        return f"{self.model.name} kv_write {self.rows} x {self.new}, {self.dtype}"

    @property
    def lengths(self) -> list[Row]:
        """A prompt begins a page; decode rows are within one."""
        return [Row(7 if self.new == 1 else 0, self.new)] * self.rows


Case = AttentionCase | MatmulCase | WriteCase


def decode(model: ModelShape, rows: int, context: int) -> AttentionCase:
    """Each row's next token."""
    return AttentionCase(model, "decode", rows, context, 1)


def verify(model: ModelShape, rows: int, context: int) -> AttentionCase:
    """Each row's drafts."""
    return AttentionCase(model, "verify", rows, context, VERIFIED)


def prefill(model: ModelShape, rows: int, context: int, most: int = 8192) -> AttentionCase:
    """Whole prompts, or their last `most` tokens in all."""
    return AttentionCase(model, "prefill", rows, context, min(context, max(most // rows, 1)))


def mixed(model: ModelShape, rows: int, context: int, new: int = 512) -> AttentionCase:
    """Decode rows and the first tokens of a prompt."""
    return AttentionCase(model, "mixed", rows, context, new)
