"""`jaxinfer generate`: one prompt, continued in the terminal."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jaxinfer.cli.sampling import SamplingFlags, with_seed
from jaxinfer.cli.settings import ONE_AT_A_TIME, parse_settings
from jaxinfer.cli.statistics import GenerationClock
from jaxinfer.console.progress import build_progress
from jaxinfer.console.terminal import Output
from jaxinfer.constraint import Constraint
from jaxinfer.engine.types import TokenLogprobs
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.llm import LLM
from jaxinfer.sampling import SamplingParams
from jaxinfer.text import Tokenizer
from jaxinfer.text.defaults import GenerationDefaults

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class GenerateOptions:
    """The text to continue, and the output to show."""

    prompt: str | None = None
    """The text to continue; by default standard input."""
    n: int = 1
    """Continuations; the first is shown as it comes, the others after it."""
    logprobs: int | None = None
    """Show each token with its log-probability, and so many of the likeliest at its place."""
    prompt_logprobs: int | None = None
    """Show each token of the prompt with its log-probability, and so many of the likeliest at its place."""
    json_schema: Path | None = None
    """A file with a JSON Schema that the text must be of."""
    regex: str | None = None
    """A regular expression that the text must be of."""
    grammar: Path | None = None
    """A file with a grammar, Lark's or GBNF, that the text must be of."""

    def constraint(self) -> Constraint | None:
        """None where the text is free. Raises ParameterError."""
        given = [name for name in ("json_schema", "regex", "grammar") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ParameterError(given[1], f"and {given[0]} both say what the text must be; give one")
        if self.json_schema is not None:
            return Constraint.schema(_text_of(self.json_schema, "json_schema"), "json_schema")
        if self.grammar is not None:
            return Constraint.text("grammar", _text_of(self.grammar, "grammar"), "grammar")
        return None if self.regex is None else Constraint.text("regex", self.regex, "regex")


def _text_of(file: Path, param: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(param, f"{file} cannot be read: {error}") from None


def run(arguments: Sequence[str]) -> int:
    """Prints the text as it comes, and what it took on standard error."""
    groups = {"generation": GenerateOptions(), "sampling": SamplingFlags()}
    config, settings = parse_settings("generate", groups, arguments, engine=ONE_AT_A_TIME)
    options: GenerateOptions = settings.generation
    sampling, constraint = with_seed(settings.sampling, config.load.seed), options.constraint()

    def params(defaults: GenerationDefaults) -> SamplingParams:
        shown = {"n": options.n, "logprobs": options.logprobs, "prompt_logprobs": options.prompt_logprobs}
        more = {"structured_outputs": constraint, **shown}
        return sampling.params(defaults, default_max_tokens=DEFAULT_MAX_TOKENS, **more)

    params(GenerationDefaults())  # what is out of range is told before a model is loaded
    prompt = _prompt(options)
    with build_progress() as progress:
        llm = LLM(config=config, progress=progress)
    try:
        return _generate(llm, prompt, params(llm.text.defaults), asked=sampling.max_tokens is not None)
    finally:
        llm.close()


def _prompt(options: GenerateOptions) -> str:
    if options.prompt is None and sys.stdin.isatty():
        raise ParameterError("prompt", "is missing; give --prompt TEXT, or the text on standard input")
    prompt = sys.stdin.read() if options.prompt is None else options.prompt
    if not prompt:
        raise ParameterError("prompt", "is empty; give --prompt TEXT, or the text on standard input")
    return prompt


def _generate(llm: LLM, prompt: str, params: SamplingParams, *, asked: bool) -> int:
    """asked: `max_tokens` was, so that a shorter text would not be what was asked for."""
    ids = llm.text.tokenizer.encode(prompt)
    room = llm.info.max_model_len - len(ids)
    if params.max_tokens is not None and params.max_tokens > room > 0 and asked:
        raise ParameterError(
            "max_tokens", f"{params.max_tokens} and the prompt's {len(ids)} tokens are more than the context"
        )
    clock = GenerationClock(len(ids), lambda: llm.engine.runner.late_programs)
    texts, tokens = [""] * params.n, [list[TokenLogprobs]() for _ in range(params.n)]
    of_prompt: list[TokenLogprobs | None] = []
    out = Output()
    for delta in llm.stream({"prompt_token_ids": ids}, params):
        clock.push(delta)
        texts[delta.index] += delta.text
        tokens[delta.index] += delta.logprobs or ()
        of_prompt += delta.prompt_logprobs or ()
        if delta.index == 0:
            out.write(delta.text)
        if delta.error is not None:
            raise JaxinferError(delta.error)
    out.write("\n")
    for i, text in enumerate(texts[1:], 1):
        out.write(f"--- {i + 1} of {params.n} ---\n{text}\n")
    _print_logprobs("prompt", ids, of_prompt, llm.text.tokenizer)
    for i, entries in enumerate(tokens):
        title = "output" if params.n == 1 else f"output {i + 1}"
        _print_logprobs(title, [entry.token_id for entry in entries], entries, llm.text.tokenizer)
    print(clock.line(), file=sys.stderr)
    return 0


def _print_logprobs(
    title: str, ids: Sequence[int], entries: Sequence[TokenLogprobs | None], tokenizer: Tokenizer
) -> None:
    """A table of tokens; the first token of a prompt has no log-probability."""
    if not entries:
        return
    table = Table(title=title, title_justify="left")
    for name in ("token", "log-probability", "rank", "likeliest"):
        table.add_column(name, justify="left" if name in ("token", "likeliest") else "right", no_wrap=name == "token")
    for token, entry in zip(ids, entries, strict=True):
        name = repr(tokenizer.token_text(token))
        if entry is None:
            table.add_row(name, "", "", "")
            continue
        top = "  ".join(f"{tokenizer.token_text(other)!r} {logprob:.3f}" for other, logprob in entry.top)
        table.add_row(name, f"{entry.logprob:.4f}", str(entry.rank), top)
    Console(markup=False, highlight=False, emoji=False).print(table)
