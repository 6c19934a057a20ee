"""Questions that the small tables answer."""

from random import Random

from demo_data.tables import CAPITALS, COLOURS, FACTS, GROUPS, JOKES, LEGS, OPPOSITES, SOUNDS, UNKNOWN_COUNTRIES
from demo_data.turns import Turn, join, made_up, pick, typed

_CAPITAL = (
    "What is the capital of {c}?",
    "What's the capital of {c}?",
    "Which city is the capital of {c}?",
    "Capital of {c}?",
    "Tell me the capital of {c}.",
    "Name the capital of {c}.",
    "Do you know the capital of {c}?",
    "The capital of {c} is",
)
_AND = ("And of {c}?", "And {c}?", "What about {c}?")
_NUMBER_WORDS = ("no", "one", "two", "three", "four", "five")


def capital(rng: Random) -> list[Turn]:
    """A country's capital, and perhaps that of another one."""
    if rng.random() < 0.15:
        country = rng.choice(UNKNOWN_COUNTRIES) if rng.random() < 0.6 else made_up(rng)
        return [Turn(typed(rng, pick(rng, _CAPITAL, c=country)), f"I do not know the capital of {country}.")]
    first, second = rng.sample(sorted(CAPITALS), 2)
    turns = [Turn(typed(rng, pick(rng, _CAPITAL, c=first)), _capital_of(first))]
    if rng.random() < 0.3:
        turns.append(Turn(typed(rng, pick(rng, _AND, c=second)), _capital_of(second)))
    return turns


def _capital_of(country: str) -> str:
    return f"The capital of {country} is {CAPITALS[country]}."


def country(rng: Random) -> list[Turn]:
    """The country of a capital."""
    name = rng.choice([c for c in CAPITALS if c not in ("England", "the United Kingdom")])
    city = CAPITALS[name]
    ask = pick(rng, ("Where is {c}?", "In which country is {c}?", "Which country is {c} the capital of?"), c=city)
    return [Turn(typed(rng, ask), f"{city} is the capital of {name}.")]


def table(rng: Random) -> list[Turn]:
    """A line of one of the other tables."""
    return [rng.choice((_opposite, _colour, _sound, _legs, _group))(rng)]


def _opposite(rng: Random) -> Turn:
    word, other = rng.choice([pair for p in OPPOSITES.items() for pair in (p, p[::-1])])
    ask = pick(rng, ("What is the opposite of {w}?", "Opposite of {w}?", "Name the opposite of {w}."), w=word)
    return Turn(typed(rng, ask), f"The opposite of {word} is {other}.")


def _colour(rng: Random) -> Turn:
    thing = rng.choice(sorted(COLOURS))
    asks = ("What color is {t}?", "What colour is {t}?", "Which color does {t} have?", "What is the color of {t}?")
    return Turn(typed(rng, pick(rng, asks, t=thing)), f"{thing[0].upper()}{thing[1:]} is {COLOURS[thing]}.")


def _sound(rng: Random) -> Turn:
    animal = rng.choice(sorted(SOUNDS))
    ask = pick(rng, ("What does {a} say?", "What sound does {a} make?", "How does {a} sound?"), a=animal)
    return Turn(typed(rng, ask), f"{animal[0].upper()}{animal[1:]} says {SOUNDS[animal]}.")


def _legs(rng: Random) -> Turn:
    animal = rng.choice(sorted(LEGS))
    count = LEGS[animal] or "no"
    return Turn(typed(rng, f"How many legs does {animal} have?"), f"{animal[0].upper()}{animal[1:]} has {count} legs.")


def _group(rng: Random) -> Turn:
    name, count = rng.choice(sorted(GROUPS)), rng.choice((2, 3, 3, 4, 5))
    amount = rng.choice((_NUMBER_WORDS[count], str(count)))
    ask = pick(rng, ("Name {n} {g}.", "List {n} {g}.", "Tell me {n} {g}.", "Give me {n} {g}."), n=amount, g=name)
    words = join(GROUPS[name][:count])
    return Turn(typed(rng, ask), f"{words[0].upper()}{words[1:]}.")


def fact(rng: Random) -> list[Turn]:
    """One of the single facts."""
    question = rng.choice(sorted(FACTS))
    return [Turn(typed(rng, question), FACTS[question])]


def joke(rng: Random) -> list[Turn]:
    """A joke."""
    asks = ("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "A joke, please.", "Tell me something funny.")
    return [Turn(typed(rng, rng.choice(asks)), rng.choice(JOKES))]
