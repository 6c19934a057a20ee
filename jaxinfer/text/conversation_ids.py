"""ConversationEncoder: token ids of a conversation, in which the only control tokens are the chat template's own.

A control token that a request's string holds, or that such a string and the template make together, is text: the
tokens of its characters. Most conversations have none, and are tokenised as they are rendered. Where a string could
have a part in one that is found, the conversation is rendered again with markers around these parts.
"""

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.control_tokens import ControlSpan
from jaxinfer.text.failures import failures
from jaxinfer.text.markers import Markers, Span, Suspects, strings_of, with_strings
from jaxinfer.text.tokenizer import Tokenizer

SHORT_CHARS = 4096
"""Characters that are tokenised on the event loop: below this a thread costs more than the work."""

_STRINGS = ("tools", "template_kwargs")


class RenderedPrompt(NamedTuple):
    """A conversation's text and its token ids."""

    text: str
    token_ids: list[int]


class ConversationEncoder:
    """A chat template and its tokenizer. trusting: control tokens in strings are control tokens, as in transformers."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, *, trusting: bool):
        self._template = template
        self._tokenizer = tokenizer
        self._trusting = trusting

    def encode(
        self, messages: Sequence[Mapping[str, Any]], *, add_special_tokens: bool = False, **options: Any
    ) -> RenderedPrompt:
        """messages, options: of `ChatTemplate.render`. Raises ParameterError."""
        job = _Job(messages, {"now": datetime.now(), **options}, add_special_tokens)
        text = self._template.render(messages, **job.options)
        return RenderedPrompt(text, self._without_foreign(job, text, self._plain_ids(job, text)))

    async def encode_async(
        self, messages: Sequence[Mapping[str, Any]], *, add_special_tokens: bool = False, **options: Any
    ) -> RenderedPrompt:
        """`encode`, off the event loop where it takes long."""
        job = _Job(messages, {"now": datetime.now(), **options}, add_special_tokens)
        text = await self._template.render_async(messages, **job.options)
        if len(text) > SHORT_CHARS:
            ids = await asyncio.to_thread(lambda: self._without_foreign(job, text, self._plain_ids(job, text)))
            return RenderedPrompt(text, ids)
        ids = self._plain_ids(job, text)
        if self._suspects(job, ids):
            ids = await asyncio.to_thread(self._without_foreign, job, text, ids)
        return RenderedPrompt(text, ids)

    def _plain_ids(self, job: "_Job", text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=job.add_special_tokens, param="messages")

    def _suspects(self, job: "_Job", ids: list[int]) -> Suspects | None:
        """What to look for, where a string of the request could have a part in a control token that was found."""
        if self._trusting:
            return None
        suspects = _suspects_of(self._tokenizer.control_tokens.texts(ids))
        return suspects if any(suspects.spans(text, is_key=is_key) for _, text, is_key in job.strings()) else None

    def _without_foreign(self, job: "_Job", text: str, ids: list[int]) -> list[int]:
        """The prompt's ids, in which control tokens of the request's strings are the tokens of their characters."""
        suspects = self._suspects(job, ids)
        if suspects is None:
            return ids
        with failures(lambda error: ParameterError("messages", f"cannot be tokenised: {error}")):
            return self._apart(job, text, ids, suspects)

    def _apart(self, job: "_Job", text: str, ids: list[int], suspects: Suspects) -> list[int]:
        found, markers = self._tokenizer.control_tokens.spans(text), Markers()
        marked = self._render_marked(job, suspects, markers)
        cut = markers.taken_out(marked)
        if cut is not None and cut[0] == text:
            own = [span for span in found if not any(_overlap(span, part) for part in cut[1])]
            return ids if len(own) == len(found) else self._encode(job, text, own, suspects)
        # The template depends on what was marked. Where no string has a whole control token, it may be one that they
        # and the template make together: markers keep that apart.
        beside = [span.token_id for span in self._tokenizer.control_tokens.spans(marked)]
        if job.whole(suspects) is None and beside == [span.token_id for span in found]:
            return ids
        raise job.refusal(suspects)

    def _render_marked(self, job: "_Job", suspects: Suspects, markers: Markers) -> str:
        def marked(text: str, is_key: bool) -> str:
            return markers.around(text, suspects.spans(text, is_key=is_key))

        options = {**job.options, **{name: with_strings(job.options.get(name), marked) for name in _STRINGS}}
        try:
            return self._template.render(with_strings(job.messages, marked), **options)
        except (ParameterError, RecursionError):
            raise job.refusal(suspects) from None

    def _encode(self, job: "_Job", text: str, own: list[ControlSpan], suspects: Suspects) -> list[int]:
        control = self._tokenizer.control_tokens
        ids = control.encode(text, own, add_special_tokens=False)
        if control.count(ids) != len(own):  # a vocabulary whose own pieces make one
            raise job.refusal(suspects)
        return control.encode(text, own, add_special_tokens=True) if job.add_special_tokens else ids


class _Job(NamedTuple):
    """A conversation to encode. options: of `ChatTemplate.render`."""

    messages: Sequence[Mapping[str, Any]]
    options: dict[str, Any]
    add_special_tokens: bool

    def strings(self) -> Iterator[tuple[str, str, bool]]:
        """Every string of the request: where it is, itself, and whether it is a key."""
        yield from strings_of(self.messages, "messages")
        yield from strings_of(self.options.get("tools"), "tools")
        yield from strings_of(self.options.get("template_kwargs"), "chat_template_kwargs")

    def whole(self, suspects: Suspects) -> tuple[str, str] | None:
        """Where a control token is, and its text."""
        found = ((where, suspects.whole(text)) for where, text, _ in self.strings())
        return next(((where, token) for where, token in found if token is not None), None)

    def refusal(self, suspects: Suspects) -> ParameterError:
        """The error that names a string that may be at fault."""
        where, token = self.whole(suspects) or ("messages", "")
        if token:
            return ParameterError(
                where,
                f"has the text of the control token {token!r}, and the model's chat template changes it on the way, so "
                "that it cannot be told from the template's own; leave it out",
            )
        for where, text, is_key in self.strings():
            for start, end in suspects.spans(text, is_key=is_key):
                message = f"{text[start:end]!r} makes a control token of the model's chat template; leave it out"
                return ParameterError(where, message)
        return ParameterError("messages", "make a control token of the model's chat template")


@functools.lru_cache(64)
def _suspects_of(tokens: frozenset[str]) -> Suspects:
    return Suspects(tokens)


def _overlap(control: ControlSpan, part: Span) -> bool:
    # A part of which the template has left nothing stands between its neighbours.
    return (control.start < part[1] and part[0] < control.end) or control.start < part[0] == part[1] < control.end
