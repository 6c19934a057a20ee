"""ConversationEncoder: token ids of a conversation, in which the only control tokens are the chat template's own.

A control token of which a character comes from a request's string is text: the tokens of its characters. Where no
string has a sign of a control token that is found (`<`, `|`, `>`), nor is the middle of one, the text is tokenised as
it is rendered. Otherwise the conversation is rendered once more, in which each sign of each string is a symbol that the
text does not have. A character that is cut, joined, reordered, trimmed or normalised on the way remains known as the
string's. Where symbols change what the template does, because it looks for a text of its own, such as `</think>`, that
text stays as it is, if it can be no part of a control token. Last come markers around whole control tokens: what
remains must be the control tokens that there are where all signs are symbols. What cannot be shown to be the template's
own is refused.

It relies on templates that take their own texts whole, and make no signs of other characters (`|striptags` does). A
string of letters that a template puts between signs of its own (`<|{{ role }}|>`) is found only where the template does
no more to it than to trim it and to change its case.
"""

import asyncio
import functools
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.markers import strings_of, with_strings
from jaxinfer.text.template.marking import Marked, Marking
from jaxinfer.text.template.suspects import Suspects
from jaxinfer.text.tokenizer.control_tokens import ControlSpan
from jaxinfer.text.tokenizer.failures import failures
from jaxinfer.text.tokenizer.tokenizer import Tokenizer

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
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        most: int | None = None,
        **options: Any,
    ) -> RenderedPrompt:
        """Do as `encode`, off the event loop if it takes long. most: of `Tokenizer.encode_batch`."""
        job = _Job(messages, {"now": datetime.now(), **options}, add_special_tokens, most)
        text = await self._template.render_async(messages, **job.options)
        if len(text) > SHORT_CHARS:
            ids = await asyncio.to_thread(lambda: self._without_foreign(job, text, self._plain_ids(job, text)))
            return RenderedPrompt(text, ids)
        ids = self._plain_ids(job, text)
        if self._suspects(job, ids):
            ids = await asyncio.to_thread(self._without_foreign, job, text, ids)
        return RenderedPrompt(text, ids)

    def _plain_ids(self, job: "_Job", text: str) -> list[int]:
        special, most = job.add_special_tokens, job.most
        return self._tokenizer.encode(text, add_special_tokens=special, param="messages", most=most)

    def _suspects(self, job: "_Job", ids: list[int]) -> Suspects | None:
        """Return the suspects to look for, if a string of the request could be part of a control token that was
        found."""
        if self._trusting:
            return None
        control = self._tokenizer.control_tokens
        suspects = _suspects_of(control.texts(ids), control.normalizing)
        touched = any(suspects.touches(text, is_key) for _, text, is_key in job.strings())
        return suspects if touched else None

    def _without_foreign(self, job: "_Job", text: str, ids: list[int]) -> list[int]:
        """The prompt's ids, in which control tokens of the request's strings are the tokens of their characters."""
        suspects = self._suspects(job, ids)
        if suspects is None:
            return ids
        with failures(lambda error: ParameterError("messages", f"cannot be tokenised: {error}")):
            marked, disguised = self._marked(job, text, suspects)
            if marked is not None and not any(map(marked.touches, suspects.places(text))):
                return ids
            found = self._tokenizer.control_tokens.spans(text)
            if marked is None:
                own = self._own_by_markers(job, text, found, suspects, disguised)
            else:
                own = [span for span in found if not marked.touches((span.start, span.end))]
            return ids if len(own) == len(found) else self._encode(job, text, own, suspects)

    def _marked(self, job: "_Job", text: str, suspects: Suspects) -> tuple[Marked | None, str | None]:
        """The text with symbols for signs, None where that changes what the template does; and what it makes of strings
        without signs, None where it does not take them.
        """
        signs = {sign for _, part, _ in job.strings() for sign in suspects.signs(part)}
        marking = Marking(suspects.middle, signs, text)
        if not marking.complete:
            raise job.refusal(suspects)
        disguised = self._render_marked(job, marking)
        marked = marking.read(disguised, text)
        if marked is None:
            kept = suspects.apart(self._template.literals(with_tools=bool(job.options.get("tools"))))
            marking = Marking(suspects.middle, signs, text, kept)
            marked = marking.read(self._render_marked(job, marking), text) if kept else None
        return marked, disguised

    def _own_by_markers(
        self, job: "_Job", text: str, found: list[ControlSpan], suspects: Suspects, disguised: str | None
    ) -> list[ControlSpan]:
        """Return the control tokens in a text that are the template's. Raises ParameterError if that cannot be
        decided."""
        marking = Marking(suspects.spans)
        marked = marking.read(self._render_marked(job, marking), text)
        if disguised is None or (marked is None and job.whole(suspects) is not None):
            raise job.refusal(suspects)
        own = [span for span in found if marked is None or not marked.touches((span.start, span.end))]
        wanted = self._tokenizer.control_tokens.spans(disguised)
        if [span.token_id for span in own] != [span.token_id for span in wanted]:
            raise job.refusal(suspects)
        return own

    def _render_marked(self, job: "_Job", marking: Marking) -> str | None:
        """The conversation with its strings marked; None where the template does not take it."""
        changed = {name: _with_marks(job.options.get(name), marking, name) for name in _STRINGS}
        messages = _with_marks(job.messages, marking, "messages")
        try:
            return self._template.render(messages, **{**job.options, **changed})
        except ParameterError:
            return None

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
    most: int | None = None

    def strings(self) -> Iterator[tuple[str, str, bool]]:
        """Every string of the request: where it is, itself, and whether it is a key."""
        yield from strings_of(self.messages, "messages")
        yield from strings_of(self.options.get("tools"), "tools")
        yield from strings_of(self.options.get("template_kwargs"), "chat_template_kwargs")

    def whole(self, suspects: Suspects) -> tuple[str, str] | None:
        """Find a control token in the request's strings: its field, and its text."""
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
            for start, end in suspects.spans(text, is_key):
                message = f"{text[start:end]!r} makes a control token of the model's chat template; leave it out"
                return ParameterError(where, message)
        touched = (where for where, text, is_key in self.strings() if suspects.touches(text, is_key))
        message = "the model's chat template could make a control token of its signs; leave them out"
        return ParameterError(next(touched, "messages"), message)


@functools.lru_cache(64)
def _suspects_of(tokens: frozenset[str], normalizing: bool) -> Suspects:
    return Suspects(tokens, normalizing=normalizing)


def _with_marks(value: Any, marking: Marking, name: str) -> Any:
    try:
        return with_strings(value, marking.mark)
    except RecursionError:
        param = "chat_template_kwargs" if name == "template_kwargs" else name
        raise ParameterError(param, "are nested too deeply to be searched for control tokens") from None
