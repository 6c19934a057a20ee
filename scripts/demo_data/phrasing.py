"""The many ways in which people write one question."""

from collections.abc import Sequence
from random import Random

from demo_data.words import SYLLABLES


def pick(rng: Random, choices: Sequence[str], **fields: object) -> str:
    """One of `choices`, with its {fields} filled in."""
    return rng.choice(choices).format(**fields)


def typed(rng: Random, text: str) -> str:
    """`text` as somebody may type it: with a word of politeness, without the mark at its end, in a small letter."""
    if rng.random() < 0.1:
        text = rng.choice(("Please, ", "Hey, ", "Hi, ", "OK, ", "So, ")) + small(text)
    if rng.random() < 0.05:
        text = text.rstrip("?.!") + ", please" + text[len(text.rstrip("?.!")) :]
    if rng.random() < 0.15:
        text = text.rstrip("?.!")
    return small(text) if rng.random() < 0.1 else text


def small(text: str) -> str:
    """`text` with a small first letter, but for a lone I."""
    return text if text[:2] in ("I ", "I'") else text[0].lower() + text[1:]


def capital(text: str) -> str:
    """`text` with a capital first letter."""
    return text[0].upper() + text[1:]


def a(noun: str) -> str:
    """The noun with its article."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def join(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else words[0]


def made_up(rng: Random) -> str:
    """A name that nobody has, so that the model learns to copy instead of to remember."""
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(2, 3))).capitalize()
