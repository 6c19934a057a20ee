"""A question of the generated data: what is said before the answer, the answer, and what counts as right."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Message(NamedTuple):
    """One message. thought: what the model thinks before it answers; only of the last answer is it kept."""

    role: str
    content: str
    thought: str = ""


@dataclass(frozen=True)
class Question:
    """messages end with the user's or a tool's. content: what decides the split. right: judges an answer's text.

    tools: of OpenAI's form. thinking: the last user's message asks for it.
    """

    kind: str
    content: tuple[object, ...]
    messages: tuple[Message, ...]
    answer: Message
    right: Callable[[str], bool]
    tools: tuple[dict[str, Any], ...] = ()

    @property
    def thinking(self) -> bool:
        """The answer begins with a thought."""
        return bool(self.answer.thought)


def plain(
    kind: str,
    content: tuple[object, ...],
    user: str,
    answer: str,
    thought: str = "",
    right: Callable[[str], bool] | None = None,
) -> Question:
    """A question of one message; right is what equals the answer where nothing else is given."""
    judge = right or (lambda text: text.strip() == answer)
    label = f"{kind}, thinking" if thought else kind
    return Question(label, content, (Message("user", user),), Message("assistant", answer, thought), judge)
