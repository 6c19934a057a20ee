"""Small sums and counting."""

from random import Random

from demo_data.turns import Turn, typed

_SIGNS = {"+": ("+", "plus"), "-": ("-", "minus"), "*": ("*", "times", "x")}


def small_sum(rng: Random) -> list[Turn]:
    """One or two sums: up to 10 + 10, differences within 10, products up to 5 * 5. Larger ones are declined."""
    if rng.random() < 0.1:
        return [_large_sum(rng)]
    return [_sum(rng) for _ in range(rng.choice((1, 1, 2)))]


def _large_sum(rng: Random) -> Turn:
    numbers = [rng.randint(11, 999), rng.choice((rng.randint(0, 10), rng.randint(11, 99), rng.randint(100, 9999)))]
    rng.shuffle(numbers)
    text = f"{numbers[0]} {rng.choice(rng.choice(tuple(_SIGNS.values())))} {numbers[1]}"
    asks = (f"What is {text}?", text, f"How much is {text}?", f"Compute {text}.")
    return Turn(typed(rng, rng.choice(asks)), "That is too large for me. I can do sums with numbers up to 10.")


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
    first = 1 if rng.random() < 0.7 else rng.randint(0, 10)
    last = 10 if first == 1 and rng.random() < 0.2 else rng.randint(first + 2, min(first + 10, 20))
    asks = [f"Count from {first} to {last}."]
    if first == 1:
        asks += [f"Count to {last}.", f"Can you count to {last}?", f"List the numbers up to {last}."]
    return Turn(typed(rng, rng.choice(asks)), _listed(range(first, last + 1)))


def _down(rng: Random) -> Turn:
    first = rng.randint(3, 10)
    asks = (f"Count down from {first}.", f"Count backwards from {first}.", f"Count from {first} to 1.")
    return Turn(typed(rng, rng.choice(asks)), _listed(range(first, 0, -1)))


def _after(rng: Random) -> Turn:
    number = rng.randint(0, 50)
    if rng.random() < 0.5:
        return Turn(typed(rng, f"What comes after {number}?"), f"After {number} comes {number + 1}.")
    return Turn(typed(rng, f"Which number comes before {number + 1}?"), f"Before {number + 1} comes {number}.")


def _listed(numbers: range) -> str:
    return ", ".join(map(str, numbers)) + "."
