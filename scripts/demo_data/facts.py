"""Questions that the tables answer. The wording decides the split: facts are asked in wordings unseen in training."""

from random import Random

from demo_data.fact_tables import CAPITALS, COLOURS, OPPOSITES, UNITS
from demo_data.phrasing import capital, typed
from demo_data.question import Question, plain

_CAPITAL = (
    "What is the capital of {x}?", "What's the capital of {x}?", "Which city is the capital of {x}?",
    "Capital of {x}?", "Tell me the capital of {x}.", "Name the capital of {x}.", "Do you know the capital of {x}?",
    "The capital of {x} is", "What city is the capital of {x}?", "Can you tell me the capital of {x}?",
    "What is the capital city of {x}?", "Which is the capital of {x}?", "{x}: what is its capital?",
    "I want to know the capital of {x}.", "Give me the capital of {x}.", "What is the name of the capital of {x}?",
    "The capital of {x}, please.", "Please name the capital city of {x}.", "Say the capital of {x}.",
    "What do you call the capital of {x}?", "Which capital belongs to {x}?", "I forgot the capital of {x}. What is it?",
    "Could you name the capital of {x}?", "What is the capital of the country {x}?", "Quick: the capital of {x}?",
    "Which city do we call the capital of {x}?", "My question: what is the capital of {x}?",
    "Find the capital of {x}.", "Let me know the capital of {x}.", "Where is the government of {x}? Name the capital.",
)  # fmt: skip
_OPPOSITE = (
    "What is the opposite of {x}?", "What's the opposite of {x}?", "Opposite of {x}?", "Name the opposite of {x}.",
    "Tell me the opposite of {x}.", "The opposite of {x} is", "Which word is the opposite of {x}?",
    "Give me the opposite of {x}.", "What word means the opposite of {x}?", "Do you know the opposite of {x}?",
    "Can you name the opposite of {x}?", "Say the opposite of {x}.", "I need the opposite of {x}.",
    "What is the opposite of the word {x}?", "Which word is opposite to {x}?", "{x}: what is the opposite?",
    "The opposite of {x}, please.", "What would be the opposite of {x}?", "Find the opposite of {x}.",
    "What do you call the opposite of {x}?", "Could you tell me the opposite of {x}?",
    "Please give me a word that is the opposite of {x}.", "Quick: the opposite of {x}?",
    "I am looking for the opposite of {x}.", "Let me know the opposite of {x}.", "What word is the opposite of {x}?",
)  # fmt: skip
_COLOUR = (
    "What color is {x}?", "What colour is {x}?", "Which color does {x} have?", "What is the color of {x}?",
    "What is the colour of {x}?", "Which colour is {x}?", "Tell me the color of {x}.", "Name the colour of {x}.",
    "Do you know what color {x} is?", "The color of {x} is", "What color does {x} have?", "The colour of {x}, please.",
    "Can you tell me the colour of {x}?", "Give me the color of {x}.", "I want to know the colour of {x}.",
    "{x}: which color?", "Say the color of {x}.", "What color would you give {x}?", "Which color has {x}?",
    "If you paint {x}, which colour do you use?", "Quick: the colour of {x}?", "Could you name the color of {x}?",
    "Let me know the color of {x}.", "What colour do you think of for {x}?", "In what color do you see {x}?",
)  # fmt: skip
_UNIT = (
    "How many {n} are in {x}?", "How many {n} are there in {x}?", "What is the number of {n} in {x}?",
    "How many {n} does {x} have?", "Tell me how many {n} are in {x}.", "The number of {n} in {x} is",
    "How many {n} make {x}?", "How many {n} in {x}?", "Do you know how many {n} are in {x}?",
    "Can you tell me how many {n} there are in {x}?", "{x} has how many {n}?", "Give me the number of {n} in {x}.",
    "Say how many {n} are in {x}.", "I want to know how many {n} are in {x}.", "Name the number of {n} in {x}.",
    "What number of {n} is in {x}?", "Number of {n} in {x}?", "How many {n} can you count in {x}?",
    "Quick: how many {n} in {x}?", "Could you say how many {n} are in {x}?", "Count the {n} in {x}: how many?",
    "Let me know how many {n} are in {x}.", "How many {n} do you find in {x}?", "How many {n} would be in {x}?",
)  # fmt: skip

_LEADS = (
    "Tell me", "Please tell me", "Can you say", "Do you know", "Could you tell me", "I would like to know", "Say",
    "I need to know", "I wonder", "My question is", "A question", "Answer me", "One question", "I have to know",
    "Would you tell me", "Quick", "Next question", "Can anybody say", "Help me", "Just say",
)  # fmt: skip
_CAPITALS = _CAPITAL + tuple(
    f"{lead}: {core}"
    for lead in _LEADS
    for core in ("what is the capital of {x}?", "the capital of {x}?", "{x}, which capital?")
)
_OPPOSITES = _OPPOSITE + tuple(
    f"{lead}: {core}"
    for lead in _LEADS
    for core in (
        "what is the opposite of {x}?",
        "the opposite of {x}?",
        "{x}, which opposite?",
        "which word is opposite to {x}?",
    )
)
_BOTH = {**OPPOSITES, **{value: key for key, value in OPPOSITES.items()}}


def capital_of(rng: Random, think: bool) -> Question:
    """The capital of a country."""
    country = rng.choice(sorted(CAPITALS))
    thought = f"The user asks for the capital of {country}." if think else ""
    answer = f"The capital of {country} is {CAPITALS[country]}."
    return _fact(rng, "fact: capital", _CAPITALS, {"x": country}, answer, CAPITALS[country], thought)


def opposite(rng: Random, think: bool) -> Question:
    """The opposite of a word."""
    word = rng.choice(sorted(_BOTH))
    answer = f"The opposite of {word} is {_BOTH[word]}."
    return _fact(rng, "fact: opposite", _OPPOSITES, {"x": word}, answer, _BOTH[word], _about(word, think))


def colour(rng: Random, think: bool) -> Question:
    """The colour of a thing."""
    thing = rng.choice(sorted(COLOURS))
    answer = f"{capital(thing)} is {COLOURS[thing]}."
    return _fact(rng, "fact: colour", _COLOUR, {"x": thing}, answer, COLOURS[thing], _about(thing, think))


def unit(rng: Random, think: bool) -> Question:
    """Ask for the number of a unit in another."""
    key = rng.choice(sorted(UNITS))
    preposition = " in " if " in " in key else " on "
    small, large = key.split(preposition)
    answer = f"{capital(large)} has {UNITS[key]} {small}."
    return _fact(rng, "fact: unit", _UNIT, {"n": small, "x": large}, answer, UNITS[key], _about(key, think))


def fact_count() -> int:
    """Return the number of facts."""
    return len(CAPITALS) + len(_BOTH) + len(COLOURS) + len(UNITS)


def _about(what: str, think: bool) -> str:
    return f"The question is about {what}." if think else ""


def _fact(
    rng: Random, kind: str, wordings: tuple[str, ...], fields: dict[str, str], answer: str, key: str, thought: str
) -> Question:
    wording = rng.choice(wordings)
    ask = typed(rng, wording.format(**fields))
    ask = capital(ask) if wording.startswith("{") and ask[:4] != "the " else ask

    def right(text: str) -> bool:
        return text.strip().rstrip(".").endswith(answer.rstrip(".")) or text.strip() in (key, f"{key}.")

    return plain(kind, ("wording", wording), ask, answer, thought, right)
