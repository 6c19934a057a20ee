"""UnknownKeys: what becomes of the keys of a config.json that nothing here reads."""

import functools
import logging
import re
from collections.abc import Collection
from typing import Any

from jaxinfer.errors import shortened

log = logging.getLogger(__name__)

_MOST_LISTED = 20

_COMPUTING = frozenset(
    """
    attn attention rope rotary mrope alibi ntk logn yarn mscale position positional pe theta alpha beta gamma factor
    scale scaling scalar multiplier mult mup norm rmsnorm layernorm prenorm postnorm eps epsilon bias activation act glu
    swiglu gate gated gating expert moe router routing routed topk window sliding swa chunk chunked softmax softcap
    softcapping cap clamp clip limit logit mlp ffn intermediate embed embd embedding emb head layer block residual skip
    conv convolution ssm mamba state recurrent kv query qk qkv lora adapter rank latent dim width depth channel
    interleave interleaved cross sink mtp nextn linear sparse indexer group dense tie tied share shared rotate rotation
    hadamard truncate freq frequency section causal bidirectional mask memory ngram hyper compress hybrid bit sym zero
    codebook quant quantization quantized sparsity rotator scoring score normalize normalization nonlinearity relu gelu
    silu ln nope prefix mixer delta decay inner hidden
    """.split()  # noqa: SIM905
)
"""Words of keys that say what is computed."""

_HARMLESS = frozenset(
    """
    flash flashattn flashattention fuse fused fusion dropout pdrop drop neftune init initializer loss aux train
    training pretraining finetune finetuned finetuning gradient version dtype impl implementation commit entropy
    recompute
    """.split()  # noqa: SIM905
)
"""Words of keys that speak of training, or of how and not what is computed, whatever other words they have."""

_FALSE_COUNTS = frozenset(
    {
        "is_causal", "causal", "use_causal_mask", "use_rope", "use_rotary", "use_rotary_embedding", "rotary",
        "apply_rope", "scale_attn_weights", "use_rmsnorm", "rms_norm", "gated", "gated_mlp", "use_gated_mlp",
        "use_gated_activation", "is_gated_act", "use_parallel_residual",
    }
)  # fmt: skip
"""Keys of which false says something, too."""

_NEUTRAL_AT_ONE = frozenset({"factor", "scale", "scaling", "multiplier", "mult"})


class UnknownKeys:
    """Decides for each key that was not read, and remembers those that pass although nobody knows them.

    ignored: keys that pass whatever they are, by their names or by where they stand, as `rope_scaling.alpha`.
    """

    def __init__(self, ignored: Collection[str] = ()):
        self._ignored = frozenset(ignored)
        self._used: set[str] = set()
        self._passed: dict[str, None] = {}

    def passes(self, path: str, name: str, value: Any) -> bool:
        """Return False for a key that might change what the model computes. path: its name and where it stands."""
        asked = self._ignored & {path, name}
        self._used |= asked
        if asked or _says_nothing(name, value):
            return True
        if suggests_computation(name):
            return _is_neutral(name, value)
        self._passed[path] = None
        return True

    def warn(self, where: str) -> None:
        """Log, once, the keys that passed, and those to ignore that are not there."""
        if self._passed:
            _warn_once(f"{where}: ignored, since nothing here knows them: {_listed(self._passed)}")
        if left := sorted(self._ignored - self._used):
            _warn_once(f"{where}: ignore_config_keys: {_listed(left)}: no unknown key is called so")


def suggests_computation(name: str) -> bool:
    """Return whether the words of a key's name say what a model computes, such as `attn` or `scaling`."""
    words = set(map(_stem, re.findall(r"[a-z]+", _snake(name))))
    return bool(words & set(map(_stem, _COMPUTING))) and not words & set(map(_stem, _HARMLESS))


def _stem(word: str) -> str:
    """A word without the s of a plural."""
    return word.removesuffix("s") if len(word) > 3 else word


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _says_nothing(name: str, value: Any) -> bool:
    """Null, false, 0 and what is empty."""
    if value is False:
        return name not in _FALSE_COUNTS
    return not value


def _is_neutral(name: str, value: Any) -> bool:
    """A factor of 1."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and value == 1 and bool(set(name.split("_")) & _NEUTRAL_AT_ONE)


def _listed(names: Collection[str]) -> str:
    """The first of some names, each cut: files are others'."""
    more = [f"{len(names) - _MOST_LISTED} more"] if len(names) > _MOST_LISTED else []
    return ", ".join([*map(shortened, list(names)[:_MOST_LISTED]), *more])


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
