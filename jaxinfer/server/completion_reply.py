"""CompletionReply: what /v1/completions makes of a generation."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from jaxinfer.server.choices_reply import ChoicesReply, by_index
from jaxinfer.server.logprobs import TextOffsets, join_logprobs
from jaxinfer.server.reply_schema import Completion, CompletionChoice, CompletionChunk, CompletionLogprobs
from jaxinfer.serving.bodies.schema import CompletionBody
from jaxinfer.serving.context import Context
from jaxinfer.serving.generation import Generation, PromptStep
from jaxinfer.serving.usage import Usage
from jaxinfer.text import ChoiceDelta


class CompletionReply(ChoicesReply):
    """Continuations of prompts. Choice j of prompt i has the index i·n + j. texts: of prompts that came as text."""

    _chunk_type = CompletionChunk

    def __init__(
        self, name: str, context: Context, body: CompletionBody, texts: Sequence[str | None], generation: Generation
    ):
        super().__init__(name, context, body, generation)
        self._tokenizer = context.text.tokenizer
        self._body = body
        self._texts = texts
        self._made = body.best_of or self._n
        self._ranking = _Ranking() if self._made > self._n else None
        # Only an echo is asked for: the one token that the engine makes is not shown.
        self._prompt_only = body.max_tokens == 0
        self._skip_special_tokens = body.skip_special_tokens is not False
        self._offsets: dict[int, TextOffsets] = {}
        self._echoes: dict[int, _Echo] = {}
        self._begun: set[int] = set()

    def first(self) -> list[CompletionChoice]:
        """Nothing comes before the first token."""
        return []

    def choices(self, step: PromptStep) -> list[CompletionChoice]:
        return [choice for delta in step.deltas if (choice := self._choice(step.prompt_index, delta)) is not None]

    def joined(self, parts: list[CompletionChoice]) -> bytes:
        found = by_index(parts)
        choices = [self._join(index, found[made]) for index, made in enumerate(self._shown(found))]
        whole = Completion(*self._head, choices, self.usage(), self._fingerprint)
        return msgspec.json.encode(whole)

    def usage(self) -> Usage:
        """Tokens so far; those of choices that `best_of` drops are counted, for they were made."""
        usage = super().usage()
        if self._prompt_only:
            usage.completion_tokens, usage.total_tokens = 0, usage.prompt_tokens
        return usage

    def _shown(self, made: dict[int, list[CompletionChoice]]) -> list[int]:
        """The choices that the client gets, of all that were made."""
        if self._ranking is None:
            return sorted(made)
        groups = [range(i * self._made, (i + 1) * self._made) for i in range(len(self._texts))]
        return [index for group in groups for index in self._ranking.best(group, self._n)]

    def _choice(self, prompt_index: int, delta: ChoiceDelta) -> CompletionChoice | None:
        index = prompt_index * self._made + delta.index
        if self._ranking is not None:
            self._ranking.add(index, delta)
        begins = index not in self._begun
        self._begun.add(index)
        text, echoed, _ = self._echo(prompt_index) if begins and self._body.echo else _NO_ECHO
        more, logprobs, ids = self._generated(prompt_index, index, delta)
        text += more
        lists = [part for part in (echoed, logprobs) if part is not None]
        if not (text or lists or ids or delta.finish_reason):
            return None
        choice = CompletionChoice(index, text, _joined(lists), delta.finish_reason, delta.stop_reason)
        if self._prompt_only and delta.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = "length", None
        if self._body.return_token_ids:
            choice.token_ids = ids
            choice.prompt_token_ids = self._generation.prompt_token_ids(prompt_index) if begins else UNSET
        return choice

    def _generated(
        self, prompt_index: int, index: int, delta: ChoiceDelta
    ) -> tuple[str, CompletionLogprobs | None, list[int]]:
        if self._prompt_only:
            return "", None, []
        logprobs = None
        if delta.logprobs is not None and self._body.logprobs is not None:
            logprobs = self._logprobs.completion(delta.logprobs, self._offsets_of(prompt_index, index))
        return delta.text, logprobs, list(delta.token_ids) if self._body.return_token_ids else []

    def _echo(self, prompt_index: int) -> "_Echo":
        """The prompt, as the beginning of each of its choices."""
        if prompt_index not in self._echoes:
            self._echoes[prompt_index] = self._make_echo(prompt_index)
        return self._echoes[prompt_index]

    def _make_echo(self, prompt_index: int) -> "_Echo":
        text, logprobs = self._texts[prompt_index], None
        ids = self._generation.prompt_token_ids(prompt_index)
        offsets = TextOffsets(self._tokenizer, (), skip_special_tokens=self._skip_special_tokens)
        entries = self._generation.prompt_logprobs(prompt_index)
        if self._body.logprobs is not None and entries is not None:
            logprobs = self._logprobs.echoed(ids[0], entries, offsets)
        if text is None or self._body.truncate_prompt_tokens is not None:
            text = self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
        return _Echo(text, logprobs, offsets.length)

    def _offsets_of(self, prompt_index: int, index: int) -> TextOffsets:
        offsets = self._offsets.get(index)
        if offsets is None:
            offsets = self._offsets[index] = TextOffsets(
                self._tokenizer,
                self._generation.requests[prompt_index].prompt_token_ids,
                skip_special_tokens=self._skip_special_tokens,
                length=self._echo(prompt_index).length if self._body.echo else 0,
            )
        return offsets

    def _join(self, index: int, parts: list[CompletionChoice]) -> CompletionChoice:
        first, last = parts[0], parts[-1]
        wanted = self._body.prompt_logprobs is not None
        entries = self._generation.prompt_logprobs(index // self._n) if wanted else None
        whole = CompletionChoice(
            index=index,
            text="".join(part.text for part in parts),
            logprobs=_joined([part.logprobs for part in parts if part.logprobs is not None]),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            prompt_logprobs=None if entries is None else self._logprobs.prompt(entries),
            prompt_token_ids=first.prompt_token_ids or None,
            token_ids=None,
        )
        if self._body.return_token_ids:
            whole.token_ids = [token for part in parts for token in part.token_ids or ()]
        return whole


class _Echo(NamedTuple):
    """A prompt's text, the log-probabilities of its tokens where they were asked for, and the characters they cover."""

    text: str
    logprobs: CompletionLogprobs | None
    length: int


_NO_ECHO = _Echo("", None, 0)


def _joined(lists: list[CompletionLogprobs]) -> CompletionLogprobs | None:
    return join_logprobs(lists) if lists else None


class _Ranking:
    """Ranks choices by the mean log-probability of their tokens, as OpenAI's `best_of`."""

    def __init__(self) -> None:
        self._sums: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def add(self, index: int, delta: ChoiceDelta) -> None:
        entries = delta.logprobs or ()
        self._sums[index] = self._sums.get(index, 0.0) + sum(entry.logprob for entry in entries)
        self._counts[index] = self._counts.get(index, 0) + len(entries)

    def best(self, indices: range, n: int) -> list[int]:
        def mean(index: int) -> float:
            return self._sums[index] / max(self._counts[index], 1)

        return sorted(indices, key=lambda index: (-mean(index), index))[:n]
