"""From Anthropic's messages to those of a chat: blocks become texts, thoughts, calls and tools' messages."""

from collections.abc import Sequence

from jaxinfer.serving.bodies.chat_schema import CalledFunction, Message, ToolCall
from jaxinfer.serving.bodies.messages_schema import (
    Block,
    DocumentBlock,
    ImageBlock,
    MessageBody,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from jaxinfer.serving.errors import RequestError

BILLING = "x-anthropic-billing-header:"
"""Beginning of a line that Claude Code puts before its system prompt. It differs in each request, and no prefix of two
prompts would be the same."""

Texts = list[tuple[str, str]]
"""Each text, and its place in the body."""


class Conversation:
    """Messages of a chat, and the places in the body from which they come.

    places: maps fields of the chat to fields of the body, as `messages[0].content` to `system`.
    """

    def __init__(self, system: str | Sequence[TextBlock] | None, messages: Sequence[MessageBody]):
        self.messages: list[Message] = []
        self.places: dict[str, str] = {}
        self._call_ids: set[str] = set()
        self._add_system(system)
        for i, message in enumerate(messages):
            self._add(message, f"messages[{i}]")

    def _add_system(self, system: str | Sequence[TextBlock] | None) -> None:
        if isinstance(system, str):
            texts = [(_without_billing(system), "system")]
        else:
            texts = [(_without_billing(block.text), f"system[{i}]") for i, block in enumerate(system or ())]
        texts = [(text, place) for text, place in texts if text]
        if texts:
            self._append(Message(role="system", content=_parts(texts)), "system", "system", texts)

    def _add(self, message: MessageBody, where: str) -> None:
        content = message.content
        if isinstance(content, str):
            self._append(Message(role=message.role, content=content), where, f"{where}.content")
        elif message.role == "assistant":
            self._add_answer(content, where)
        else:
            self._add_input(message.role, content, where)

    def _add_input(self, role: str, blocks: Sequence[Block], where: str) -> None:
        """Add what a user says. Results of tools are messages of their own, in the order of the blocks."""
        texts: Texts = []
        for i, block in enumerate(blocks):
            place = f"{where}.content[{i}]"
            if isinstance(block, TextBlock):
                texts.append((block.text, place))
            elif isinstance(block, ToolResultBlock) and role == "user":
                if texts:
                    self._add_texts(role, texts, where)
                    texts = []
                self._add_result(block, place)
            else:
                raise _refused(block, role, place)
        if texts or not blocks:
            self._add_texts(role, texts, where)

    def _add_texts(self, role: str, texts: Texts, where: str) -> None:
        self._append(Message(role=role, content=_parts(texts)), where, f"{where}.content", texts)

    def _add_result(self, block: ToolResultBlock, where: str) -> None:
        if block.tool_use_id not in self._call_ids:
            param = f"{where}.tool_use_id"
            shown = repr(block.tool_use_id[:64])
            raise RequestError(f"{param}: {shown} is the id of no tool_use block before it", param=param)
        if isinstance(block.content, list):
            texts = [_result_text(part, f"{where}.content[{i}]") for i, part in enumerate(block.content)]
        else:
            texts = [(block.content or "", f"{where}.content")]
        if block.is_error:
            # Templates know no failed results.
            first, place = texts[0] if texts else ("", f"{where}.content")
            texts[:1] = [("Error: " + first.removeprefix("Error: "), place)]
        message = Message(role="tool", content=_parts(texts), tool_call_id=block.tool_use_id)
        self._append(message, where, f"{where}.content", texts)

    def _add_answer(self, blocks: Sequence[Block], where: str) -> None:
        texts, thoughts, calls = [], [], []
        for i, block in enumerate(blocks):
            place = f"{where}.content[{i}]"
            match block:
                case TextBlock():
                    texts.append((block.text, place))
                case ThinkingBlock():
                    thoughts.append((block.thinking, place))
                case ToolUseBlock():
                    calls.append((block, place))
                    self._call_ids.add(block.id)
                case RedactedThinkingBlock():
                    pass
                case _:
                    raise _refused(block, "assistant", place)
        message = Message(role="assistant", content=_parts(texts) or ("" if not calls else None))
        here = self._append(message, where, f"{where}.content", texts)
        if any(thought for thought, _ in thoughts):
            message.reasoning_content = "\n".join(thought for thought, _ in thoughts)
            self.places[f"{here}.reasoning_content"] = thoughts[0][1]
        if calls:
            message.tool_calls = [_call(block) for block, _ in calls]
            self.places.update({f"{here}.tool_calls[{i}]": place for i, (_, place) in enumerate(calls)})

    def _append(self, message: Message, place: str, content_place: str, texts: Texts | None = None) -> str:
        """Add a message; return what errors of a chat call it."""
        here = f"messages[{len(self.messages)}]"
        self.messages.append(message)
        self.places |= {here: place, f"{here}.content": content_place}
        self.places |= {f"{here}.content[{i}]": part_place for i, (_, part_place) in enumerate(texts or ())}
        return here


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def _parts(texts: Texts) -> str | list[dict[str, str]]:
    return [{"type": "text", "text": text} for text, _ in texts] if len(texts) != 1 else texts[0][0]


def _result_text(part: TextBlock | ImageBlock | DocumentBlock, place: str) -> tuple[str, str]:
    if not isinstance(part, TextBlock):
        raise _refused(part, "user", place)
    return part.text, place


def _call(block: ToolUseBlock) -> ToolCall:
    return ToolCall(function=CalledFunction(name=block.name, arguments=block.input), id=block.id)


def _refused(block: Block, role: str, where: str) -> RequestError:
    kind = block.__struct_config__.tag
    if isinstance(block, ImageBlock | DocumentBlock):
        message = f"{where}.type: {kind} blocks are not supported; only texts, thoughts, calls and their results are"
        return RequestError(message, param=f"{where}.type", code="unsupported_parameter")
    return RequestError(f"{where}.type: a message of role {role} cannot have {kind} blocks", param=f"{where}.type")
