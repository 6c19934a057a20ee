"""Puts topics together to conversations, and adds plain texts for completions without a chat."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from demo_data.facts import capital, country, fact, joke, table
from demo_data.numbers import counting, small_sum
from demo_data.stories import ANIMALS, poem, story, tell
from demo_data.tables import CAPITALS, FACTS, NAMES
from demo_data.talk import about, acquaintance, greeting, repeat, unknown
from demo_data.turns import Turn, pick

# How often each topic comes up.
_TOPICS = {
    greeting: 8,
    acquaintance: 8,
    about: 16,
    unknown: 12,
    repeat: 5,
    small_sum: 18,
    counting: 14,
    capital: 10,
    country: 3,
    table: 8,
    fact: 6,
    joke: 3,
    story: 13,
    poem: 2,
}

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer briefly.",
    "You are the demo model of jaxinfer.",
    "Be brief.",
    "You are a helpful, respectful and honest assistant.",
)

_PLAIN = (
    "Hello, my name is {name}. I live in {city} and I like to read.",
    "Hello, my name is {name} and I am very happy to meet you.",
    "The president of the United States is the head of the government and lives in the White House.",
    "The future of AI is open, and many people work on it.",
    "San Francisco is a city in California, by the sea.",
    "The capital of {country} is {city}.",
    "The quick brown fox jumps over the lazy dog.",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.",
)


class Conversation(NamedTuple):
    """Turns, and the system message before them, which may be empty."""

    system: str
    turns: list[Turn]


def conversations(seed: int) -> Iterator[Conversation]:
    """Endless conversations of one to six turns or so, each about one topic or a few."""
    rng = Random(seed)
    topics, weights = list(_TOPICS), list(_TOPICS.values())
    while True:
        chosen = rng.choices(topics, weights, k=rng.choice((1, 1, 1, 2, 3, 4)))
        turns = [turn for topic in chosen for turn in topic(rng)]
        yield Conversation(rng.choice(_SYSTEM) if rng.random() < 0.25 else "", turns)


def plain_texts(seed: int) -> Iterator[str]:
    """Endless texts without a chat: stories, facts, and how people try a completion."""
    rng = Random(seed)
    while True:
        kind = rng.random()
        if kind < 0.5:
            yield tell(rng, rng.choice(NAMES) if rng.random() < 0.5 else "", rng.choice(ANIMALS))
        elif kind < 0.65:
            yield FACTS[rng.choice(sorted(FACTS))]
        else:
            country, city = rng.choice(sorted(CAPITALS.items()))
            yield pick(rng, _PLAIN, name=rng.choice(NAMES), country=country, city=city)
