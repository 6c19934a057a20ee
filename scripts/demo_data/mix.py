"""Puts questions together to conversations, and adds plain texts for completions without a chat."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from demo_data.fact_tables import CAPITALS
from demo_data.phrasing import pick
from demo_data.question import Message, Question
from demo_data.stories import simple_story
from demo_data.topics import PLAIN, WITH_TOOLS, Topic, draw, no_tool
from demo_data.words import CITIES, NAMES

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer briefly.",
    "You are the demo model of jaxinfer.",
    "Be brief.",
    "You are a helpful, respectful and honest assistant.",
    "Answer every question as well as you can.",
)

_PLAIN_TEXTS = (
    "Hello, my name is {name}. I live in {city} and I like to read.",
    "Hello, my name is {name} and I am very happy to meet you.",
    "The president of the United States is the head of the government and lives in the White House.",
    "The future of AI is open, and many people work on it.",
    "San Francisco is a city in California, by the sea.",
    "The capital of {country} is {capital}.",
    "The quick brown fox jumps over the lazy dog.",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.",
)

_THINKING, _SWITCHED_OFF = 0.3, 0.05


class Conversation(NamedTuple):
    """A system message, which may be empty, tools, and messages. The last one is an answer; only it has a thought."""

    system: str
    tools: tuple[dict[str, Any], ...]
    messages: tuple[Message, ...]


def conversations(seed: int | str) -> Iterator[Conversation]:
    """Endless conversations of one to three questions. The same seed gives the same ones; no question is held out."""
    rng = Random(seed)
    topics = {**PLAIN, **WITH_TOOLS}
    while True:
        questions = _questions(rng, topics, rng.random() < _THINKING)
        system = rng.choice(_SYSTEM) if rng.random() < 0.12 else ""
        yield Conversation(system, questions[0].tools, _messages(rng, questions))


def asked(question: Question) -> tuple[Message, ...]:
    """A question's messages, the last user's with the switch that asks for thinking."""
    if not question.thinking:
        return question.messages
    last = max(i for i, message in enumerate(question.messages) if message.role == "user")
    return tuple(
        message._replace(content=message.content + " /think") if i == last else message
        for i, message in enumerate(question.messages)
    )


def plain_texts(seed: int | str) -> Iterator[str]:
    """Endless texts without a chat: stories, and how people try a completion."""
    rng = Random(seed)
    while True:
        if rng.random() < 0.4:
            yield simple_story(rng, False).answer.content
        else:
            country, city = rng.choice(sorted(CAPITALS.items()))
            name, lives = rng.choice(NAMES), rng.choice(CITIES)
            yield pick(rng, _PLAIN_TEXTS, name=name, city=lives, country=country, capital=city)


def _questions(rng: Random, topics: dict[Topic, float], think: bool) -> list[Question]:
    """Questions of one conversation; the first decides on tools, the last may think."""
    first = rng.choices(list(topics), list(topics.values()))[0]
    if first in WITH_TOOLS:
        more = int(rng.random() < 0.2)
        questions = [draw(rng, first, think and not more, "train")]
        return questions + [draw(rng, no_tool, think, "train") for _ in range(more)]
    count = rng.choice((1, 1, 1, 2, 3))
    others = rng.choices(list(PLAIN), list(PLAIN.values()), k=count - 1)
    return [draw(rng, topic, think and i == count - 1, "train") for i, topic in enumerate([first, *others])]


def _messages(rng: Random, questions: list[Question]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for question in questions:
        messages += [*asked(question), question.answer]
    if not questions[-1].thinking and rng.random() < _SWITCHED_OFF:
        last = max(i for i, message in enumerate(messages) if message.role == "user")
        messages[last] = messages[last]._replace(content=messages[last].content + " /no_think")
    return tuple(messages)
