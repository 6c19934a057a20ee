"""Lists of words and numbers, sorted and reversed."""

import re
from random import Random

from demo_data.phrasing import join, typed
from demo_data.question import Question, plain
from demo_data.words import WORDS

_SORT_WORDS = ("Sort these words: {l}.", "Sort alphabetically: {l}.", "Put these words in alphabetical order: {l}.",
               "Sort {l}.", "Sort the words {l} from A to Z.", "Order these words alphabetically: {l}.")  # fmt: skip
_SORT_UP = ("Sort these numbers: {l}.", "Sort {l}.", "Sort from smallest to largest: {l}.", "Put in order: {l}.",
            "Sort the numbers {l} in ascending order.", "Order these numbers: {l}.")  # fmt: skip
_SORT_DOWN = ("Sort these numbers in descending order: {l}.", "Sort from largest to smallest: {l}.",
              "Sort {l} from largest to smallest.", "Put in descending order: {l}.")  # fmt: skip
_REVERSE = ("Reverse this list: {l}.", "Reverse: {l}.", "Reverse the order of {l}.", "Write these backwards: {l}.",
            "Turn this list around: {l}.", "Say these words backwards: {l}.")  # fmt: skip
_REVERSE_DIGITS = ("Reverse the digits of {n}.", "Reverse the number {n}.", "Write {n} backwards.", "Reverse {n}.",
                   "What is {n} backwards?")  # fmt: skip


def sort_words(rng: Random, think: bool) -> Question:
    """3 to 6 words of the table in alphabetical order. The content is the set of words."""
    words = rng.sample(WORDS, rng.randint(3, 6))
    ordered = sorted(words)
    ask = _ask(rng, _SORT_WORDS, words)
    thought = "First letters: " + " ".join(sorted(word[0] for word in words)) + "." if think else ""
    return _words("sorting words", ("sort", *ordered), ask, ordered, thought)


def sort_numbers(rng: Random, think: bool) -> Question:
    """3 to 6 different numbers from 0 to 99, up or down. The content is the set and the direction."""
    numbers, down = rng.sample(range(100), rng.randint(3, 6)), rng.random() < 0.3
    ordered = sorted(numbers, reverse=down)
    ask = _ask(rng, _SORT_DOWN if down else _SORT_UP, list(map(str, numbers)))
    thought = f"{'Largest' if down else 'Smallest'} {ordered[0]}, {'smallest' if down else 'largest'} {ordered[-1]}."
    answer = ", ".join(map(str, ordered)) + "."
    content = ("sort", *ordered)
    return plain("sorting numbers", content, ask, answer, thought if think else "",
                 lambda text: [int(n) for n in re.findall(r"\d+", text)] == ordered)  # fmt: skip


def reverse_words(rng: Random, think: bool) -> Question:
    """3 to 6 words of the table, last one first. The content is the sequence."""
    words = rng.sample(WORDS, rng.randint(3, 6))
    ask, thought = _ask(rng, _REVERSE, words), f"The last word is {words[-1]}." if think else ""
    return _words("reversing words", ("reverse", *words), ask, words[::-1], thought)


def reverse_digits(rng: Random, think: bool) -> Question:
    """A number of 3 to 6 digits, or single digits in a list, last one first. The content is the sequence."""
    digits = [rng.choice("0123456789") for _ in range(rng.randint(3, 6))]
    spelled = rng.random() < 0.35
    if not spelled:
        digits[0] = rng.choice("123456789")
    ask = (
        _ask(rng, _REVERSE[:5], digits)
        if spelled
        else typed(rng, rng.choice(_REVERSE_DIGITS).format(n="".join(digits)))
    )
    turned, mark = digits[::-1], ", " if spelled else ""
    thought = f"The digits are {' '.join(digits)}." if think else ""
    return plain("reversing digits", ("reverse", *digits), ask, mark.join(turned) + ".", thought,
                 lambda text: re.findall(r"\d", text) == turned)  # fmt: skip


def _ask(rng: Random, asks: tuple[str, ...], items: list[str]) -> str:
    chance = rng.random()
    listed = ", ".join(items) if chance < 0.7 else join(items) if chance < 0.85 else " ".join(items)
    return typed(rng, rng.choice(asks).format(l=listed))


def _words(kind: str, content: tuple[object, ...], ask: str, expected: list[str], thought: str) -> Question:
    answer = ", ".join(expected) + "."
    return plain(kind, content, ask, answer, thought, lambda text: re.findall(r"[a-z]+", text.lower()) == expected)
