"""Sums, differences and products, answered at once or digit by digit."""

from random import Random

from demo_data.phrasing import typed
from demo_data.question import Question, plain

_SIGNS = {"+": ("+", "plus"), "-": ("-", "minus"), "*": ("*", "times", "x")}
_ASKS = ("What is {t}?", "{t}", "{t} =", "How much is {t}?", "What's {t}?", "Compute {t}.", "Calculate {t}.")
_OTHERS = {
    "+": ("Add {a} and {b}.", "What is the sum of {a} and {b}?", "What do you get when you add {b} to {a}?"),
    "-": ("Subtract {b} from {a}.", "What is the difference {a} - {b}?", "Take {b} away from {a}."),
    "*": ("Multiply {a} by {b}.", "What is the product of {a} and {b}?", "What is {a} multiplied by {b}?"),
}


def addition(rng: Random, think: bool) -> Question:
    """a + b with numbers from 0 to 99. The content is the pair, in any order."""
    a, b = _number(rng), _number(rng)
    content = ("sum", min(a, b), max(a, b))
    return _question(rng, "sum", content, (a, "+", b), a + b, _sum_steps(a, b) if think else "")


def subtraction(rng: Random, think: bool) -> Question:
    """a - b with numbers from 0 to 99; the result may be negative. The content is the pair in this order."""
    a, b = _number(rng), _number(rng)
    if a < b and rng.random() < 0.5:
        a, b = b, a
    return _question(
        rng, "difference", ("difference", a, b), (a, "-", b), a - b, _difference_steps(a, b) if think else ""
    )


def multiplication(rng: Random, think: bool) -> Question:
    """a * b with numbers from 0 to 12. The content is the pair in this order: 7 * 8 is trained, 8 * 7 may not be.

    A larger number first is turned round in the answer, which is how a pair never seen in that order can be found.
    """
    a, b = rng.randint(0, 12), rng.randint(0, 12)
    return _question(rng, "product", ("product", a, b), (a, "*", b), a * b, _product_steps(a, b) if think else "")


def _number(rng: Random) -> int:
    return rng.randint(0, 9) if rng.random() < 0.2 else rng.randint(0, 99)


def _question(
    rng: Random, kind: str, content: tuple[object, ...], terms: tuple[int, str, int], result: int, steps: str
) -> Question:
    a, sign, b = terms
    written = rng.choice(_SIGNS[sign])
    space = "" if not written.isalpha() and rng.random() < 0.25 else " "
    text = f"{a}{space}{written}{space}{b}"
    ask = rng.choice(_ASKS if rng.random() < 0.75 else _OTHERS[sign]).format(t=text, a=a, b=b)
    turned = f"{b} * {a} = " if sign == "*" and a > b else ""
    answer = f"{a} {sign} {b} = {turned}{result}."
    return plain(kind, content, typed(rng, ask), answer, steps)


def _sum_steps(a: int, b: int) -> str:
    """Units, then tens, each with its carry."""
    (ta, ua), (tb, ub) = divmod(a, 10), divmod(b, 10)
    units, carry = ua + ub, (ua + ub) // 10
    tens = ta + tb + carry
    return f"Units: {ua} + {ub} = {units}. Tens: {ta} + {tb} + {carry} = {tens}. So {tens}{units % 10:d} is {a + b}."


def _difference_steps(a: int, b: int) -> str:
    """The smaller from the larger, units first, each with its borrow; then the sign."""
    high, low = max(a, b), min(a, b)
    (th, uh), (tl, ul) = divmod(high, 10), divmod(low, 10)
    borrow = int(uh < ul)
    units, tens = uh + 10 * borrow - ul, th - borrow - tl
    sign = f" {a} is less than {b}, so {a - b}." if a < b else f" So {a - b}."
    return f"{high} - {low}. Units: {uh + 10 * borrow} - {ul} = {units}. Tens: {th} - {borrow} - {tl} = {tens}.{sign}"


def _product_steps(a: int, b: int) -> str:
    """The smaller number times, repeated addition of the larger."""
    low, high = min(a, b), max(a, b)
    if low == 0:
        return "Zero times anything is 0."
    return f"{low} * {high}: " + ", ".join(str(high * i) for i in range(1, low + 1)) + "."
