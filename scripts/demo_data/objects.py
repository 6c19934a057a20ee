"""JSON objects on request, with given fields and values."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any

from demo_data.phrasing import join, made_up, typed
from demo_data.question import Question, plain
from demo_data.words import CITIES, COLOUR_NAMES, NAMES, STORY_THINGS, WORDS

_ASKS = (
    "Give me a JSON object with {f}.", "Write JSON with {f}.", "Make a JSON object with {f}.", "JSON with {f}, please.",
    "Answer with a JSON object: {f}.", "Return a JSON object with {f}.", "Create JSON: {f}.",
    "I need a JSON object with {f}.", "Output JSON with these fields: {f}.", "Turn this into JSON: {f}.",
)  # fmt: skip
_FIELDS = ("{k} {v}", "{k} = {v}", "{k}: {v}", "{k} {v}", "{k} is {v}")

_TEXTS: dict[str, Sequence[str]] = {
    "name": NAMES, "city": CITIES, "color": COLOUR_NAMES, "friend": NAMES, "item": STORY_THINGS, "word": WORDS,
    "title": WORDS, "animal": WORDS, "owner": NAMES, "author": NAMES, "status": ["open", "closed", "new", "done"],
    "tag": WORDS, "product": STORY_THINGS, "place": CITIES, "user": NAMES, "key": WORDS, "type": WORDS, "label": WORDS,
}  # fmt: skip
_NUMBERS = (
    "age",
    "year",
    "price",
    "count",
    "size",
    "weight",
    "height",
    "score",
    "level",
    "id",
    "points",
    "room",
    "floor",
)
_FLAGS = ("active", "ready", "paid", "visible", "admin", "member", "valid", "enabled")


def json_object(rng: Random, think: bool) -> Question:
    """An object of 2 to 5 fields: texts, numbers, true and false. The content is the fields and values."""
    fields = random_fields(rng, rng.randint(2, 5))
    style = rng.choice(_FIELDS)
    parts = [style.format(k=key, v=_written(value)) for key, value in fields.items()]
    listed = join(parts) if rng.random() < 0.6 else ", ".join(parts)
    thought = f"The fields are {join(list(fields))}." if think else ""
    content = ("object", *sorted((key, str(value)) for key, value in fields.items()))
    return plain("JSON object", content, typed(rng, rng.choice(_ASKS).format(f=listed)), json.dumps(fields), thought,
                 lambda text: loaded(text) == fields)  # fmt: skip


def random_fields(rng: Random, count: int) -> dict[str, Any]:
    """`count` different fields with values."""
    keys = rng.sample([*_TEXTS, *_NUMBERS, *_FLAGS], count)
    return {key: _value(rng, key) for key in keys}


def _value(rng: Random, key: str) -> str | int | float | bool:
    if key in _FLAGS:
        return rng.random() < 0.5
    if key in _NUMBERS:
        if key == "price" and rng.random() < 0.5:
            return rng.randint(1, 99) + rng.choice((0.25, 0.5, 0.75))
        return rng.randint(1900, 2030) if key == "year" else rng.randint(0, rng.choice((9, 99, 999)))
    return made_up(rng) if rng.random() < 0.15 else rng.choice(_TEXTS[key])


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def loaded(text: str) -> Any:
    """The JSON in a text that holds nothing else; an exception's text where it is not valid."""
    try:
        return json.loads(text)
    except ValueError as error:
        return error
