"""ResponseOutput: the items of a response as they come, and the events that say so."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from jaxinfer.server.custom_input import CustomInput
from jaxinfer.server.reply import Event
from jaxinfer.server.reply_schema import TokenLogprob, ToolCallReply
from jaxinfer.server.responses_schema import (
    CustomCallItem,
    DeltaEvent,
    DoneEvent,
    FunctionCallItem,
    ItemEvent,
    OutputItem,
    OutputMessage,
    OutputText,
    PartEvent,
    ReasoningItem,
    ReasoningText,
    Status,
)
from jaxinfer.serving.requests.response_tools import OfferedTool


class EventLog:
    """Events in their order, numbered, until they are sent."""

    def __init__(self) -> None:
        self._number = 0
        self._new: list[Event] = []

    def add(self, kind: type[msgspec.Struct], name: str, /, **fields: Any) -> None:
        """Add an event with the next number."""
        self._new.append(Event(kind(name, self._number, **fields), name))
        self._number += 1

    def take(self) -> list[Event]:
        """The events since the last call."""
        new, self._new = self._new, []
        return new


class ResponseOutput:
    """Items that follow one another: each ends where the next one begins.

    offered: tools that may be called, under the names that the model has for them.
    """

    def __init__(self, offered: Sequence[OfferedTool], log: EventLog):
        self.items: list[OutputItem] = []
        self._tools = {tool.function.name: tool for tool in offered}
        self._log = log
        self._open: _OpenItem | None = None

    def say(self, text: str, logprobs: list[TokenLogprob]) -> None:
        """Add text of a message."""
        self._continued(_Message).add(text, logprobs)

    def think(self, text: str) -> None:
        """Add text of a thought."""
        self._continued(_Thought).add(text, [])

    def call(self, call: ToolCallReply) -> None:
        """Begin a call, or add to the arguments of the last one."""
        if isinstance(call.id, str):
            assert isinstance(call.function.name, str)
            self._end("completed")
            self._begin(self._new_call(call.id, call.function.name))
        assert self._open is not None
        self._open.add(call.function.arguments, [])

    def end(self, status: Status) -> None:
        """End the last item with this status. An answer of nothing is an empty message."""
        if self._open is None and not self.items:
            self._begin(_Message(self._log, 0, is_first=True))
        self._end(status)

    def _new_call(self, call_id: str, name: str) -> "_OpenItem":
        tool = self._tools.get(name)
        if tool is None:  # the model made it up
            return _FunctionCall(self._log, len(self.items), call_id, name, None)
        kind = _CustomCall if tool.is_custom else _FunctionCall
        return kind(self._log, len(self.items), call_id, tool.name, tool.namespace)

    def _continued(self, kind: "type[_Message | _Thought]") -> "_OpenItem":
        """The open item, which is another one if it is of another kind."""
        if isinstance(self._open, kind):
            return self._open
        self._end("completed")
        is_first = not any(isinstance(item, kind.result) for item in self.items)
        return self._begin(kind(self._log, len(self.items), is_first=is_first))

    def _begin(self, item: "_OpenItem") -> "_OpenItem":
        self._open = item
        item.begin()
        return item

    def _end(self, status: Status) -> None:
        if self._open is not None:
            self.items.append(self._open.end(status))
            self._open = None


class _OpenItem(ABC):
    """An item that grows. index: its number in the output."""

    prefix: ClassVar[str]
    delta: ClassVar[str]
    """Name of the events with which it grows."""

    def __init__(self, log: EventLog, index: int):
        self.id = f"{self.prefix}_{uuid.uuid4().hex}"
        self._log = log
        self._index = index
        self._text: list[str] = []

    @abstractmethod
    def item(self, status: Status) -> OutputItem:
        """The item with what it has so far."""

    def begin(self) -> None:
        """Tell that it begins."""
        self._log.add(ItemEvent, "response.output_item.added", output_index=self._index, item=self.item("in_progress"))

    def add(self, text: str, logprobs: list[TokenLogprob]) -> None:
        """Add text, perhaps with log-probabilities."""
        if text:
            self._text.append(text)
            self._tell(DeltaEvent, self.delta, delta=text)

    def end(self, status: Status) -> OutputItem:
        """Tell that it ends, and return it."""
        item = self.item(status)
        self._log.add(ItemEvent, "response.output_item.done", output_index=self._index, item=item)
        return item

    def _tell(self, kind: type[msgspec.Struct], name: str, /, **fields: Any) -> None:
        self._log.add(kind, name, item_id=self.id, output_index=self._index, **fields)


class _TextItem(_OpenItem):
    """A message or a thought: an item with one part. is_first: of its kind."""

    done: ClassVar[str]
    result: ClassVar[type[OutputItem]]

    def __init__(self, log: EventLog, index: int, *, is_first: bool):
        super().__init__(log, index)
        self._strips = not is_first
        self._logprobs: list[TokenLogprob] = []

    @abstractmethod
    def part(self) -> OutputText | ReasoningText:
        """The part with what it has so far."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """The fields of `done` that tell the whole text."""

    def begin(self) -> None:
        super().begin()
        self._tell(PartEvent, "response.content_part.added", part=self.part())

    def add(self, text: str, logprobs: list[TokenLogprob]) -> None:
        if self._strips:  # the parser puts a line break between two texts, which are items of their own here
            text, self._strips = text.removeprefix("\n"), False
        if not text:
            return
        self._text.append(text)
        self._logprobs += logprobs
        self._tell(DeltaEvent, self.delta, content_index=0, delta=text, **self.with_delta(logprobs))

    def with_delta(self, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        """Further fields of a delta."""
        return {}

    def end(self, status: Status) -> OutputItem:
        self._tell(DoneEvent, self.done, content_index=0, **self.content())
        self._tell(PartEvent, "response.content_part.done", part=self.part())
        return super().end(status)


class _Message(_TextItem):
    prefix, result = "msg", OutputMessage
    delta, done = "response.output_text.delta", "response.output_text.done"

    def item(self, status: Status) -> OutputItem:
        return OutputMessage(self.id, status, [] if status == "in_progress" else [self.part()])

    def part(self) -> OutputText:
        return OutputText("".join(self._text), self._logprobs[:])

    def content(self) -> dict[str, Any]:
        return {"text": "".join(self._text), "logprobs": self._logprobs}

    def with_delta(self, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        return {"logprobs": logprobs}


class _Thought(_TextItem):
    prefix, result = "rs", ReasoningItem
    delta, done = "response.reasoning_text.delta", "response.reasoning_text.done"

    def item(self, status: Status) -> OutputItem:
        return ReasoningItem(self.id, status, [] if status == "in_progress" else [self.part()])

    def part(self) -> ReasoningText:
        return ReasoningText("".join(self._text))

    def content(self) -> dict[str, Any]:
        return {"text": "".join(self._text)}


class _OpenCall(_OpenItem):
    """A call, whose arguments come in pieces."""

    def __init__(self, log: EventLog, index: int, call_id: str, name: str, namespace: str | None):
        super().__init__(log, index)
        self._call_id = call_id
        self._name = name
        self._namespace = UNSET if namespace is None else namespace


class _FunctionCall(_OpenCall):
    prefix, delta = "fc", "response.function_call_arguments.delta"

    def item(self, status: Status) -> OutputItem:
        arguments = "".join(self._text)
        return FunctionCallItem(self.id, status, self._call_id, self._name, arguments, self._namespace)

    def end(self, status: Status) -> OutputItem:
        whole = {"name": self._name, "arguments": "".join(self._text)}
        self._tell(DoneEvent, "response.function_call_arguments.done", **whole)
        return super().end(status)


class _CustomCall(_OpenCall):
    prefix, delta = "ctc", "response.custom_tool_call_input.delta"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._input = CustomInput()

    def item(self, status: Status) -> OutputItem:
        return CustomCallItem(self.id, status, self._call_id, self._name, "".join(self._text), self._namespace)

    def add(self, text: str, logprobs: list[TokenLogprob]) -> None:
        super().add(self._input.push(text), logprobs)

    def end(self, status: Status) -> OutputItem:
        super().add(self._input.flush(), [])
        self._tell(DoneEvent, "response.custom_tool_call_input.done", input="".join(self._text))
        return super().end(status)
