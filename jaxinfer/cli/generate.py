"""`jaxinfer generate`: one prompt, continued in the terminal."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.cli.progress import build_progress
from jaxinfer.cli.settings import parse_settings
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.llm import LLM
from jaxinfer.sampling import SamplingParams
from jaxinfer.text.defaults import GenerationDefaults


@dataclass(frozen=True)
class GenerateOptions:
    """What to continue, and how. What is not given comes from the model's generation_config.json."""

    prompt: str | None = None
    """The text to continue; by default standard input."""
    max_tokens: int = 128
    """Most tokens to generate."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Smallest set of tokens with this much probability."""
    top_k: int | None = None
    """Only the k likeliest tokens."""
    min_p: float | None = None
    """Only tokens with this share of the likeliest one's probability."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens that were there less likely."""
    stop: tuple[str, ...] = ()
    """Strings that end the text."""
    ignore_eos: bool = False
    """Go on after the end-of-sequence token."""


def run(arguments: Sequence[str]) -> int:
    """Prints the text as it comes, and what it took on standard error."""
    config, settings = parse_settings("generate", {"generation": GenerateOptions()}, arguments)
    options: GenerateOptions = settings.generation
    _params(GenerationDefaults(), options)  # what is out of range is told before a model is loaded
    prompt = _prompt(options)
    with build_progress() as progress:
        llm = LLM(config=config, progress=progress)
    try:
        return _generate(llm, prompt, _params(llm.text.defaults, options))
    finally:
        llm.close()


def _prompt(options: GenerateOptions) -> str:
    if options.prompt is None and sys.stdin.isatty():
        raise ParameterError("prompt", "is missing; give --prompt TEXT, or the text on standard input")
    prompt = sys.stdin.read() if options.prompt is None else options.prompt
    if not prompt:
        raise ParameterError("prompt", "is empty; give --prompt TEXT, or the text on standard input")
    return prompt


def _params(defaults: GenerationDefaults, options: GenerateOptions) -> SamplingParams:
    return defaults.params(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        stop=options.stop,
        ignore_eos=options.ignore_eos,
    )


def _generate(llm: LLM, prompt: str, params: SamplingParams) -> int:
    start = time.perf_counter()
    first, tokens = start, 0
    for delta in llm.stream(prompt, params):
        if not tokens:
            first = time.perf_counter()
        tokens += len(delta.token_ids)
        print(delta.text, end="", flush=True)
        if delta.error is not None:
            raise JaxinferError(delta.error)
    print()
    print(stats_line(tokens, first - start, time.perf_counter() - first), file=sys.stderr)
    return 0


def stats_line(tokens: int, first_seconds: float, rest_seconds: float) -> str:
    """What a generation took: time to the first token, and the rate of those after it."""
    rate = f", then {(tokens - 1) / rest_seconds:.1f} tokens/s" if tokens > 1 and rest_seconds > 0 else ""
    return f"{tokens} tokens; first after {first_seconds * 1000:.0f} ms{rate}"
