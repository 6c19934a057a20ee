"""Counting up and down, by ones or in steps, and the neighbours of a number."""

import re
from random import Random

from demo_data.phrasing import typed
from demo_data.question import Question, plain

_UP = ("Count from {a} to {b}.", "Can you count from {a} to {b}?", "List the numbers from {a} to {b}.",
       "Write the numbers from {a} to {b}.", "Count up from {a} to {b}.")  # fmt: skip
_DOWN = ("Count down from {a} to {b}.", "Count backwards from {a} to {b}.", "Count from {a} down to {b}.",
         "Count from {a} to {b}.")  # fmt: skip
_FROM_ONE = ("Count to {b}.", "Can you count to {b}?", "List the numbers up to {b}.")
_STEPS = ("Count from {a} to {b} by {s}.", "Count from {a} to {b} in steps of {s}.", "Count by {s} from {a} to {b}.")


def counting(rng: Random, think: bool) -> Question:
    """A range of 3 to 15 numbers within 0 to 99, or the number after or before another."""
    if rng.random() < 0.12:
        return _neighbour(rng, think)
    step = rng.choice((1, 1, 1, 1, 1, -1, -1, -1, 2, 5, 10))
    length = rng.randint(3, 15 if abs(step) < 10 else 8)
    span = abs(step) * (length - 1)
    if span > 99:
        length, span = 8, abs(step) * 7
    low = _low(rng, span)
    first, last = (low, low + span) if step > 0 else (low + span, low)
    numbers = list(range(first, last + (1 if step > 0 else -1), step))
    asks = _STEPS if step > 1 else _UP if step > 0 else _DOWN
    if step == 1 and first == 1 and rng.random() < 0.7:
        asks = _FROM_ONE
    ask = typed(rng, rng.choice(asks).format(a=first, b=last, s=step))
    return _listed(
        "counting", ("count", first, last, abs(step)), ask, numbers, _thought(first, last, step) if think else ""
    )


def _low(rng: Random, span: int) -> int:
    chance = rng.random()
    if chance < 0.3:
        return 1 if span < 99 else 0
    return rng.randint(0, 99 - span)


def _thought(first: int, last: int, step: int) -> str:
    word = "up" if step > 0 else "down"
    return f"Count {word} by {abs(step)}, first {first}, last {last}."


def _listed(kind: str, content: tuple[object, ...], ask: str, numbers: list[int], thought: str) -> Question:
    answer = ", ".join(map(str, numbers)) + "."
    return plain(
        kind, content, ask, answer, thought, lambda text: [int(n) for n in re.findall(r"-?\d+", text)] == numbers
    )


def _neighbour(rng: Random, think: bool) -> Question:
    number = rng.randint(1, 99)
    word, other = rng.choice((("after", number + 1), ("before", number - 1)))
    asks = ("What comes {w} {n}?", "Which number comes {w} {n}?", "What number is right {w} {n}?")
    ask = typed(rng, rng.choice(asks).format(w=word, n=number))
    thought = f"One {'more' if word == 'after' else 'less'} than {number}." if think else ""
    answer = f"{other} comes {word} {number}."
    return plain("counting", (word, number), ask, answer, thought)
