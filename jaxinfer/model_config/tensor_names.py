"""TensorNames: what a family's checkpoints call their tensors, and how values lie in them."""

from collections.abc import Container
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple


class Root(NamedTuple):
    """Names around a decoder in its checkpoints: the prefix of its body's tensors, and the head's name."""

    body: str = "model."
    head: str = "lm_head"


@dataclass(frozen=True)
class TensorNames:
    """Names on the Hub, without `.weight` and `.bias`; by default Llama's.

    embed, positions, norm and layers come after the root's body. Names of a layer's tensors come after `layers`, the
    layer's number and a dot; those of an expert after `experts`, the expert's number and a dot. roots: those that
    checkpoints of the family have, see `placed`. Where qkv, gate_up, experts_gate_up or experts_down is set, it is one
    tensor that holds several.

    qkv_rows: rows of qkv are all of q, then k, then v (`parts`), or for each KV head its q, k and v (`heads`).
    gate_up_rows: rows of gate_up are all of gate, then up (`parts`), or in turns (`turns`). interleaved_rope: channels
    that turn together are neighbours; loading sorts them into halves. columns_first: matrices are [in, out], and those
    of fused experts [expert, in, out] (experts_columns_first). skipped: beginnings of names that have no use here:
    other towers, heads for training.
    """

    roots: tuple[Root, ...] = (Root(),)
    embed: str = "embed_tokens"
    positions: str = ""
    norm: str = "norm"
    layers: str = "layers."
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    qkv: str | None = None
    qkv_rows: Literal["parts", "heads"] = "parts"
    out: str = "self_attn.o_proj"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    gate_up: str | None = None
    gate_up_rows: Literal["parts", "turns"] = "parts"
    down: str = "mlp.down_proj"
    input_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_out_norm: str = "post_attention_layernorm"
    mlp_out_norm: str = "post_feedforward_layernorm"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    router: str = "mlp.gate"
    choice_bias: str = "mlp.gate.e_score_correction_bias"
    experts: str = "mlp.experts."
    expert_gate: str = "gate_proj"
    expert_up: str = "up_proj"
    expert_down: str = "down_proj"
    experts_gate_up: str | None = None
    experts_down: str | None = None
    experts_columns_first: bool = False
    shared_gate_up: str | None = None
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_router: str = "mlp.shared_expert_gate"
    interleaved_rope: bool = False
    columns_first: bool = False
    skipped: tuple[str, ...] = ()

    def placed(self, found: Container[str]) -> "TensorNames":
        """Return the names with only the first root under which the embedding is found; the first root of all if there
        is none."""
        fitting = (root for root in self.roots if f"{root.body}{self.embed}.weight" in found)
        return replace(self, roots=(next(fitting, self.roots[0]),))

    def of_body(self, name: str) -> str:
        """The whole name of a tensor of the body."""
        return f"{self.roots[0].body}{name}"

    @property
    def head(self) -> str:
        """The whole name of the head."""
        return self.roots[0].head
