"""Small sums and counting."""

from random import Random

from demo_data.turns import Turn, typed

_SIGNS = {"+": ("+", "plus"), "-": ("-", "minus"), "*": ("*", "times", "x")}


def small_sum(rng: Random) -> list[Turn]:
    """One or two sums: up to 10 + 10, differences within 10, products up to 5 * 5."""
    return [_sum(rng) for _ in range(rng.choice((1, 1, 2)))]


def _sum(rng: Random) -> Turn:
    sign = rng.choice("++--*")
    top = 5 if sign == "*" else 10
    left, right = rng.randint(0, top), rng.randint(0, top)
    if sign == "-":
        left, right = max(left, right), min(left, right)
    result = {"+": left + right, "-": left - right, "*": left * right}[sign]
    written = rng.choice(_SIGNS[sign])
    space = "" if written in "+-*" and rng.random() < 0.3 else " "
    text = f"{left}{space}{written}{space}{right}"
    asks = (f"What is {text}?", f"{text}", f"{text} =", f"How much is {text}?", f"What's {text}?", f"Compute {text}.")
    return Turn(typed(rng, rng.choice(asks)), f"{left} {sign} {right} = {result}.")


def counting(rng: Random) -> list[Turn]:
    """Counting up or down within 20, or the number after another."""
    return [rng.choice((_up, _up, _down, _after))(rng)]


def _up(rng: Random) -> Turn:
    first = 1 if rng.random() < 0.6 else rng.randint(0, 10)
    last = rng.randint(first + 2, 20)
    asks = [f"Count from {first} to {last}."]
    if first == 1:
        asks += [f"Count to {last}.", f"Can you count to {last}?", f"List the numbers up to {last}."]
    return Turn(typed(rng, rng.choice(asks)), _listed(range(first, last + 1)))


def _down(rng: Random) -> Turn:
    first = rng.randint(3, 20)
    asks = (f"Count down from {first}.", f"Count backwards from {first}.", f"Count from {first} to 1.")
    return Turn(typed(rng, rng.choice(asks)), _listed(range(first, 0, -1)))


def _after(rng: Random) -> Turn:
    number = rng.randint(0, 50)
    if rng.random() < 0.5:
        return Turn(typed(rng, f"What comes after {number}?"), f"After {number} comes {number + 1}.")
    return Turn(typed(rng, f"Which number comes before {number + 1}?"), f"Before {number + 1} comes {number}.")


def _listed(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."
