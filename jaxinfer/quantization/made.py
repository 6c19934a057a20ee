"""Schemes that are made while a model in bfloat16 or float32 is loaded, by the names of `--quantization`."""

from typing import NamedTuple

from jaxinfer.quantization.scheme import Scheme

INT4_GROUP = 32
_INT8 = Scheme("int8")


class Made(NamedTuple):
    """Schemes of a name: one for the matrices of layers but routers, and one for embedding and head."""

    matrices: Scheme
    tables: Scheme

    def of(self, depth: int) -> Scheme:
        """The scheme of a layer's matrix with so many inputs: int8 where they are no multiple of the group."""
        return _INT8 if depth % (self.matrices.group or 1) else self.matrices


MADE: dict[str, Made] = {
    "int8": Made(_INT8, _INT8),
    "int4": Made(Scheme("int4", group=INT4_GROUP), _INT8),
    "fp8": Made(Scheme("e4m3"), _INT8),
    "int8-w8a8": Made(Scheme("int8", activations="int8"), _INT8),
    "fp8-w8a8": Made(Scheme("e4m3", activations="e4m3"), _INT8),
}
"""Embedding and head are int8, a scale a token, always: that halves them, and changes logits less than a layer's own
scheme does."""
