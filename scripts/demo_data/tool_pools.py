"""Parts of tools: verbs, nouns, parameters and their values."""

from collections.abc import Sequence
from random import Random
from typing import Any

from demo_data.phrasing import made_up
from demo_data.words import CITIES, COLOUR_NAMES, NAMES, STORY_THINGS, WORDS

VERBS: tuple[str, ...] = tuple(
    """
book cancel create delete find open close start stop update print rent order check count lock move paint repair send
show list add remove save load share copy clean build
""".split()
)

NOUNS: tuple[str, ...] = tuple(
    """
table room flight ticket file door light car meeting order report user song movie note list account photo message task
taxi hotel lamp window game recipe contact folder invoice parcel garden robot camera printer bike boat class course
team player page post
""".split()
)

TEXT_PARAMETERS: dict[str, Sequence[str]] = {
    "name": NAMES, "city": CITIES, "color": COLOUR_NAMES, "owner": NAMES, "item": STORY_THINGS, "title": WORDS,
    "user": NAMES, "place": CITIES, "tag": WORDS, "guest": NAMES, "label": WORDS, "target": CITIES, "kind": WORDS,
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "size": ["small", "medium", "large"], "mode": ["fast", "slow", "normal"], "status": ["open", "closed", "new"],
}  # fmt: skip
NUMBER_PARAMETERS = (
    "count",
    "number",
    "amount",
    "hour",
    "level",
    "guests",
    "seats",
    "minutes",
    "price",
    "limit",
    "floor",
    "id",
)
FLAG_PARAMETERS = ("urgent", "public", "silent", "express", "paid")


def parameter(name: str, required: bool = True) -> dict[str, Any]:
    """The JSON schema of a parameter of the pools."""
    if name in NUMBER_PARAMETERS:
        return {"type": "integer" if required else "number"}
    if name in FLAG_PARAMETERS:
        return {"type": "boolean"}
    values = TEXT_PARAMETERS.get(name, ())
    return {"type": "string", "enum": list(values)} if name in ("size", "mode") else {"type": "string"}


def parameter_value(rng: Random, name: str) -> str | int | bool:
    """A value for a parameter of the pools."""
    if name in FLAG_PARAMETERS:
        return rng.random() < 0.5
    if name in NUMBER_PARAMETERS:
        return rng.randint(1, rng.choice((9, 99, 999)))
    values = TEXT_PARAMETERS[name]
    return made_up(rng) if rng.random() < 0.15 and values in (NAMES, CITIES, WORDS) else rng.choice(values)


def tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    """A tool of OpenAI's form."""
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
