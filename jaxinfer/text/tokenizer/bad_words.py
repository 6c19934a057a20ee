"""Bad words: from strings that a text must not get to the token sequences that the engine looks for."""

from dataclasses import replace

from jaxinfer.errors import ParameterError
from jaxinfer.sampling import MAX_BAD_TOKENS, SamplingParams
from jaxinfer.text.tokenizer.tokenizer import Tokenizer


def with_bad_token_ids(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """Parameters with the tokens of their bad words, as vLLM finds them: those of each word, and those that it has
    after a space where they begin with another token and are as many. Raises ParameterError."""
    if not params.bad_words:
        return params
    sequences = list(params.bad_token_ids)
    for word in params.bad_words:
        bare, spaced = (_tokens(prefix + word.lstrip(), tokenizer) for prefix in ("", " "))
        sequences.append(bare)
        if spaced[0] != bare[0] and len(spaced) == len(bare):
            sequences.append(spaced)
    return replace(params, bad_token_ids=list(dict.fromkeys(map(tuple, sequences))))


def _tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    tokens = tokenizer.encode(text, add_special_tokens=False, param="bad_words")
    if not 1 <= len(tokens) <= MAX_BAD_TOKENS:
        raise ParameterError("bad_words", f"{text!r} has {len(tokens)} tokens; 1 to {MAX_BAD_TOKENS:,} are allowed")
    return tokens
