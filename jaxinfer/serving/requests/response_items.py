"""From the items of /v1/responses to the messages of a chat."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.serving.bodies.chat_schema import CalledFunction, Message, ToolCall
from jaxinfer.serving.bodies.responses_schema import Item
from jaxinfer.serving.errors import RequestError
from jaxinfer.serving.requests.conversation import MAX_MESSAGES
from jaxinfer.serving.requests.response_tools import custom_arguments, flat_name
from jaxinfer.text.template.messages import content_text

TYPES = (
    "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
)  # fmt: skip
"""Types of items that become messages; references are resolved before."""

_REASONING_PART = "reasoning_text"
_SYSTEM = ("system", "developer")


class Messages(NamedTuple):
    """Messages of a chat. places: of theirs that are elsewhere in the request."""

    messages: list[Message]
    places: dict[str, str]


def chat_messages(instructions: str | None, given: str | Sequence[Item]) -> Messages:
    """The conversation that instructions and items are. Raises RequestError or ParameterError.

    What the assistant thought, said and called one after another is one message, as a chat has it.
    """
    conversation = _Conversation()
    if instructions:
        conversation.add(Message(role="system", content=instructions), "instructions", "instructions")
    if isinstance(given, str):
        conversation.add(Message(role="user", content=given), "input", "input")
        return conversation.made
    if len(given) > MAX_MESSAGES:
        raise RequestError(f"input: has {len(given)} items; at most {MAX_MESSAGES} are allowed", param="input")
    if not given:
        raise RequestError("input: is empty", param="input")
    for i, item in enumerate(given):
        conversation.add_item(item, f"input[{i}]")
    return conversation.made


def type_of(item: Item) -> str:
    """An item's type; messages need not name theirs, nor references."""
    return item.type or ("item_reference" if item.role is None else "message")


class _Conversation:
    """Messages, the last of which may be the assistant's and go on."""

    def __init__(self) -> None:
        self.made = Messages([], {})
        self._open = False

    def add(self, message: Message, where: str, content: str) -> None:
        """Add a whole message. where, content: what the request calls it and its content."""
        place = self._begin(message, where)
        self.made.places[f"{place}.content"] = content
        self._open = False

    def add_item(self, item: Item, where: str) -> None:
        """Add an item. where: its place in the request."""
        match type_of(item):
            case "message" if item.role == "assistant":
                self._say(item, where)
            case "message" if item.role in _SYSTEM and self._only_system():
                self.made.messages[-1].content = f"{self.made.messages[-1].content}\n\n{_content(item, where)}"
            case "message":
                role = _given(item.role, f"{where}.role")
                self.add(Message(role=role, content=_content(item, where)), where, f"{where}.content")
            case "reasoning":
                self._think(item, where)
            case "function_call":
                self._call(item, item.arguments, where, "arguments")
            case "custom_tool_call":
                self._call(item, custom_arguments(_given(item.input, f"{where}.input")), where, "input")
            case "function_call_output" | "custom_tool_call_output":
                text = content_text(item.output, f"{where}.output")
                self.add(Message(role="tool", content=text, tool_call_id=item.call_id), where, f"{where}.output")
            case "item_reference":
                raise RequestError(f"{where}.id: is missing", param=f"{where}.id")  # others were resolved
            case other:
                message = f"{where}.type: {other[:64]!r} is not supported; {', '.join(TYPES)} and item_reference are"
                raise RequestError(message, param=f"{where}.type", code="unsupported_parameter")

    def _only_system(self) -> bool:
        """Return whether nothing has come but a system message. Many templates take one, and only at the beginning."""
        return [message.role in _SYSTEM for message in self.made.messages] == [True]

    def _say(self, item: Item, where: str) -> None:
        place = self._assistant(where)
        message = self.made.messages[-1]
        message.content = (message.content or "") + _content(item, where)  # pyright: ignore[reportOperatorIssue]
        self.made.places.setdefault(f"{place}.content", f"{where}.content")

    def _think(self, item: Item, where: str) -> None:
        text = _reasoning(item, where)
        if not text:
            return
        place = self._assistant(where)
        message = self.made.messages[-1]
        message.reasoning_content = "\n".join(filter(None, (message.reasoning_content, text)))
        self.made.places.setdefault(f"{place}.reasoning_content", f"{where}.content")

    def _call(self, item: Item, arguments: str | None, where: str, field: str) -> None:
        name = flat_name(_given(item.name, f"{where}.name"), item.namespace)
        place = self._assistant(where, goes_on=True)
        calls = self.made.messages[-1].tool_calls
        calls = self.made.messages[-1].tool_calls = [] if calls is None else calls
        call = f"{place}.tool_calls[{len(calls)}]"
        self.made.places.update(
            {call: where, f"{call}.function": where, f"{call}.function.arguments": f"{where}.{field}"}
        )
        calls.append(ToolCall(id=item.call_id, function=CalledFunction(name=name, arguments=arguments)))

    def _assistant(self, where: str, *, goes_on: bool = False) -> str:
        """Return the place of the assistant's message that an item belongs to, begun for it where need be.

        A text, or a thought, begins another message behind a text; behind calls it does not, since what the tools said
        must follow the message with the calls.
        """
        message = self.made.messages[-1] if self._open else None
        if message is None or (message.content is not None and not message.tool_calls and not goes_on):
            self._begin(Message(role="assistant"), where)
            self._open = True
        return f"messages[{len(self.made.messages) - 1}]"

    def _begin(self, message: Message, where: str) -> str:
        place = f"messages[{len(self.made.messages)}]"
        self.made.messages.append(message)
        self.made.places[place] = where
        return place


def _content(item: Item, where: str) -> str:
    return content_text(item.content, f"{where}.content")


def _reasoning(item: Item, where: str) -> str:
    """Text of a thought: its content, else its summary."""
    if isinstance(item.content, str):
        return item.content
    parts = [part for part in item.content or () if part.get("type", _REASONING_PART) in (_REASONING_PART, "text")]
    if not all(isinstance(part.get("text"), str) for part in parts):
        raise RequestError(f"{where}.content: its parts must have a text", param=f"{where}.content")
    return "\n".join([part["text"] for part in parts] or [part.text for part in item.summary or ()])


def _given(value: str | None, where: str) -> str:
    if value is None:
        raise RequestError(f"{where}: is missing", param=where)
    return value
