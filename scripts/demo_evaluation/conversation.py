"""A question as OpenAI's messages, and what of a model's text is its answer."""

import json
import re
from typing import Any

from demo_data import tools
from demo_data.question import Message, Question

_THOUGHT = re.compile(r"^<think>\n.*?\n</think>\n\n", re.DOTALL)


def openai_messages(question: Question) -> list[dict[str, Any]]:
    """The messages before the answer, past calls in their own field."""
    return [_openai(message, index) for index, message in enumerate(question.messages)]


def verdict(question: Question, text: str) -> bool:
    """Return whether a model's text is right: it has a thought if and only if one was asked for, and a right answer."""
    found = _THOUGHT.match(text)
    if question.thinking != bool(found) or "<think>" in text[found.end() if found else 0 :]:
        return False
    return question.right(text[found.end() if found else 0 :])


def _openai(message: Message, index: int) -> dict[str, Any]:
    calls = (
        tools.calls_in(message.content) if message.role == "assistant" and "<tool_call>" in message.content else None
    )
    if calls is None:
        extra = {"tool_call_id": f"call_{index - 1}_0"} if message.role == "tool" else {}
        return {"role": message.role, "content": message.content, **extra}
    named = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    listed = [{"id": f"call_{index}_{i}", "type": "function", "function": call} for i, call in enumerate(named)]
    return {"role": "assistant", "content": None, "tool_calls": listed}
