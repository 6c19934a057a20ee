"""Text to tokens and tokens to text: tokenizer, chat template, detokenisation, stop strings. No jax."""

from jaxinfer.text.output import ChoiceDelta, OutputAssembler, join_deltas
from jaxinfer.text.processor import TextProcessor
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

__all__ = ["ChoiceDelta", "OutputAssembler", "TextProcessor", "Tokenizer", "join_deltas"]
