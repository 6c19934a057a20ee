"""HarmonyParser: answers in OpenAI's harmony format (gpt-oss), where each message goes to a channel."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from jaxinfer.text.answer.json_strings import may_become_object
from jaxinfer.text.answer.parts import TOLD_AFTER, AnswerPart, ToolCallPart, arguments_text, beginning_of

CHANNEL, MESSAGE = "<|channel|>", "<|message|>"
FINAL = CHANNEL + "final" + MESSAGE
FUNCTIONS = "functions."

_BODY_TAGS = ("<|start|>", CHANNEL, "<|end|>", "<|return|>", "<|call|>")
_BODY_END = re.compile("|".join(map(re.escape, _BODY_TAGS)))
_HEADER_END = re.compile(r"<\|(?:message|end|return|call)\|>")
_OPENINGS = ("<|start|>", CHANNEL, MESSAGE, "to=")
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)? ?(?:to=[^ <]+)? ?"
    r"(?:<\|channel\|> ?\w+ ?(?:to=[^ <]+ ?)?)*(?:<\|constrain\|>)? ?\w* ?<\|message\|>"
)
_CHANNEL, _TO = re.compile(r"<\|channel\|> ?(\w+)"), re.compile(r"to=([^ <]+)")
_HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json")
_RECIPIENT = re.compile(r"to=[\w.-]*|to?")
_MOST_HEADER_CHARS = 256


class _Message(NamedTuple):
    """written: its text stays in the content with its header and its end. header: as the model wrote it."""

    kind: Literal["reasoning", "content", "call", "written"]
    header: str = ""
    function: str = ""


class HarmonyParser:
    """Takes apart `<|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…`.

    `analysis` is reasoning, and so are messages to others than functions (`python`, `container.exec`); `final`, and
    `commentary` that is for the user, are content; a message to `functions.NAME` is a tool call. Of several channels
    and recipients in one header the last one counts. Line breaks join messages of one kind. A header that is not valid,
    and a call whose arguments are no JSON object within `TOLD_AFTER` characters, stay in the content as they were
    written; text without a header is content. The
    tags are control tokens, which the text must have: see `AnswerFormat.params`. A prompt ends with
    `<|start|>assistant`, or, where the answer continues a message, with its beginning.
    """

    def __init__(self, *, reasoning: bool, tools: bool):
        self._reasoning = reasoning
        self._tools = tools
        self._held = ""
        self._message = _Message("content")
        self._is_new = True  # nothing of the message was shown
        self._shown: set[str] = set()  # kinds of which something was shown
        self._told = False  # the call has been told, and its arguments follow
        self._state = self._between

    def push(self, text: str) -> list[AnswerPart]:
        """The parts that are complete with this text."""
        self._held += text
        parts: list[AnswerPart] = []
        while self._held and self._state(parts):
            pass
        return parts

    def flush(self) -> list[AnswerPart]:
        """Return the parts that were held back: the text has ended."""
        held, self._held = self._held, ""
        if self._state == self._calling:
            return self._rest_of_call(held, end="")
        if not held or (self._state == self._heading and _begins_header(held)):
            return []
        if self._state != self._speaking:
            self._begin(_Message("written"))
        return [self._part(held)]

    # Each state takes what it can from `_held` and returns whether another state has to go on.

    def _between(self, parts: list[AnswerPart]) -> bool:
        text = self._held.lstrip()
        if text.startswith(_OPENINGS):
            self._state = self._heading
            return True
        if any(opening.startswith(text) for opening in _OPENINGS):
            return False
        self._begin(_Message("content"))
        return True

    def _heading(self, parts: list[AnswerPart]) -> bool:
        found = _HEADER_END.search(self._held, 0, _MOST_HEADER_CHARS)
        if found is None and len(self._held) < _MOST_HEADER_CHARS:
            return False
        if found is not None and found.group() == MESSAGE:
            header = self._take(found.end())
            self._begin(self._read_header(header))
        else:
            header = self._take(_MOST_HEADER_CHARS if found is None else found.start())
            self._begin(_Message("written", header))
        if self._message.kind == "written":
            parts.append(self._part(header))
        return True

    def _speaking(self, parts: list[AnswerPart]) -> bool:
        found = _BODY_END.search(self._held)
        kept = _kept(self._held) if found is None else 0
        text = self._take(len(self._held) - kept if found is None else found.start())
        if found is not None:
            text += self._end(found.group()) * (self._message.kind == "written")
        if text:
            parts.append(self._part(text))
        return found is not None

    def _calling(self, parts: list[AnswerPart]) -> bool:
        found = _BODY_END.search(self._held)
        body = self._held[: len(self._held) - _kept(self._held) if found is None else found.start()]
        text = body.lstrip()
        if not self._told and len(text) >= TOLD_AFTER and may_become_object(text[:TOLD_AFTER]):
            self._told = True
            parts.append(AnswerPart(tool_call=ToolCallPart(self._message.function, "")))
            self._take(len(body) - len(text))
            return True
        if found is not None:
            body = self._take(found.start())
            parts += self._rest_of_call(body, self._end(found.group()))
        elif self._told and body:
            parts.append(AnswerPart(arguments=self._take(len(body))))
        return found is not None

    def _rest_of_call(self, body: str, end: str) -> list[AnswerPart]:
        if not self._told:
            return [self._call(body, end)]
        return [AnswerPart(arguments=body)] if body else []

    def _begin(self, message: _Message) -> None:
        self._message, self._is_new, self._told = message, True, False
        self._state = self._calling if message.kind == "call" else self._speaking

    def _end(self, tag: str) -> str:
        """Ends the message at a tag. Returns what of the tag belongs to it: nothing where it begins the next header."""
        self._state = self._between
        return "" if tag in _OPENINGS else self._take(len(tag))

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _read_header(self, header: str) -> _Message:
        found = _HEADER.fullmatch(" ".join(header.split()))
        if found is None:
            return _Message("written", header)
        recipient, channel = (next(iter(reversed(pattern.findall(header))), None) for pattern in (_TO, _CHANNEL))
        if recipient is not None and recipient.startswith(FUNCTIONS):
            return _Message("call" if self._tools else "written", header, recipient.removeprefix(FUNCTIONS))
        if (channel == "analysis" or recipient not in (None, "user")) and self._reasoning:
            return _Message("reasoning", header)
        known = channel in (None, "commentary", "final") or recipient is not None
        return _Message("content" if known else "written", header)

    def _call(self, body: str, end: str) -> AnswerPart:
        arguments = arguments_text(body if body.strip() else {})
        if arguments is not None:
            return AnswerPart(tool_call=ToolCallPart(self._message.function, arguments))
        self._message = self._message._replace(kind="written")
        return self._part(self._message.header + body + end)

    def _part(self, text: str) -> AnswerPart:
        """A piece of the message; the first one of a message is on a line of its own."""
        kind = "reasoning" if self._message.kind == "reasoning" else "content"
        text = "\n" * (self._is_new and kind in self._shown) + text
        self._is_new = False
        self._shown.add(kind)
        return AnswerPart(reasoning=text) if kind == "reasoning" else AnswerPart(content=text)


class AnalysisTokens:
    """Counts the tokens of messages in the channel `analysis`. ids: of the tags. analysis: the tokens of that word."""

    def __init__(self, ids: Mapping[str, int], analysis: Sequence[int]):
        self.count = 0
        self._channel, self._message = ids[CHANNEL], ids[MESSAGE]
        self._ends = frozenset(ids[tag] for tag in _BODY_TAGS if tag in ids)
        self._analysis = list(analysis)
        self._header: list[int] = []  # the first tokens after the last tag
        self._inside = False

    def push(self, token_ids: Sequence[int]) -> None:
        """Takes the answer's next tokens."""
        for token in token_ids:
            if token == self._message:
                self._inside = self._header == self._analysis
            elif token in self._ends:
                self._inside, self._header = False, []
            elif self._inside:
                self.count += 1
            elif len(self._header) < len(self._analysis):
                self._header.append(token)


def _kept(text: str) -> int:
    """Characters at the end of a text that may begin a tag."""
    return max(beginning_of(tag, text) for tag in _BODY_TAGS)


def _begins_header(text: str) -> bool:
    """Return whether a text that begins with a tag may be an unfinished header: it contains nothing of a message's
    text."""
    words = re.sub(r"<\|\w*\|?>?", " ", text).split()
    known = (any(name.startswith(word) for name in _HEADER_WORDS) or _RECIPIENT.fullmatch(word) for word in words)
    return text.lstrip().startswith("<|") and all(known)
