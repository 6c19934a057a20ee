"""A turn of a conversation, and the many ways in which people write one question."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple


class Turn(NamedTuple):
    """What the user says and what the model answers."""

    user: str
    answer: str


def pick(rng: Random, choices: Sequence[str], **fields: object) -> str:
    """One of `choices`, with its {fields} filled in."""
    return rng.choice(choices).format(**fields)


def typed(rng: Random, text: str) -> str:
    """`text` as somebody may type it: in small letters, without the mark at its end, with a word of politeness."""
    if rng.random() < 0.12:
        opening = rng.choice(("Please, ", "Hey, ", "Hi, ", "OK, ", "So, ", "Hello! ", "Can you help me? "))
        text = opening + (text if opening.endswith(("! ", "? ")) else text[0].lower() + text[1:])
    if rng.random() < 0.06:
        text = text.rstrip("?.!") + ", please" + text[len(text.rstrip("?.!")) :]
    if rng.random() < 0.25:
        text = text.rstrip("?.!")
    if rng.random() < 0.25:
        text = text.lower()
    return text


def a(noun: str) -> str:
    """The noun with its article."""
    return f"{'an' if noun[0] in 'aeio' else 'a'} {noun}"


def join(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def made_up(rng: Random) -> str:
    """A name that nobody has, so that the model learns to copy instead of to remember."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()


_SYLLABLES = (
    "an",
    "ba",
    "chi",
    "da",
    "el",
    "fo",
    "gu",
    "han",
    "in",
    "jo",
    "ka",
    "li",
    "mar",
    "no",
    "or",
    "pe",
    "ra",
    "san",
    "ti",
    "u",
    "vi",
    "wen",
    "xa",
    "yo",
    "ze",
)
