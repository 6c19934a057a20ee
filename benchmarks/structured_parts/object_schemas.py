"""Schemas whose texts are objects, from the shared material: the JSON Schema Test Suite's, and those of functions.

The suite's: in order of name, every schema that describes an object at its root (by `type`, by a keyword of objects
where it names no type, or by a `const`) and that jsonschema reads as the suite does; `"type": "object"` is added, as
the suite's own schemas take any text that is no object. Functions': of the parameters, in the file's order. Those that
the engine refuses are left out. The prompt asks for a valid instance: the suite's first, or a function's accepted
arguments.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError

SUITE, FUNCTIONS = "schemas/testsuite_draft2020-12_core.jsonl", "functions/bfcl_simple_python.jsonl"
ANSWERS = "functions/bfcl_simple_python_answers.jsonl"
_OF_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties")
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Python's types as JSON Schema calls them; `any` is left out."""


class ObjectSchema(NamedTuple):
    """A schema of objects, what a model is asked for, and an object that fits. name: of its group or its function."""

    name: str
    schema: dict[str, Any]
    prompt: str
    instance: dict[str, Any]


def object_schemas(data: Path, count: int, accepts: Callable[[Constraint], None]) -> dict[str, list[ObjectSchema]]:
    """`count` schemas in each of three lists: `suite`, filled up with functions' where there are not as many;
    `functions`; and the same in OpenAI's strict form. data: the folder of the shared material. accepts: raises
    ParameterError for what is refused."""

    def first(schemas: Iterable[ObjectSchema]) -> list[ObjectSchema]:
        return list(islice((each for each in schemas if _accepted(each, accepts)), count))

    functions = first(of_functions(data / FUNCTIONS, data / ANSWERS))
    strict = first(each._replace(schema=strict_form(each.schema)) for each in functions)
    return {"suite": first(chain(of_suite(data / SUITE), functions)), "functions": functions, "strict": strict}


def of_suite(file: Path) -> Iterator[ObjectSchema]:
    """The suite's, whether they are refused or not."""
    for group in sorted(_read(file), key=lambda group: group["id"]):
        schema = group["schema"]
        if group["python_jsonschema_agrees"] and isinstance(schema, dict) and _describes_object(schema):
            instance = next((each for each in group["valid"] if isinstance(each, dict)), {})
            yield ObjectSchema(group["id"], {"type": "object", **schema}, _asking_for(instance), instance)


def of_functions(file: Path, answers: Path) -> Iterator[ObjectSchema]:
    """Yield the schema of the first function that each question offers. answers: accepted values of each argument."""
    for row, answer in zip(_read(file), _read(answers), strict=True):
        (arguments,) = answer["ground_truth"][0].values()
        instance = {name: values[0] for name, values in arguments.items() if values[0] != ""}
        schema = _json_schema(row["function"][0]["parameters"])
        ordered = {name: instance[name] for name in schema["properties"] if name in instance}
        yield ObjectSchema(row["id"], schema, _asking_for(instance), ordered)


def strict_form(schema: Any) -> Any:
    """Return a schema with all properties required and no others allowed, at every level."""
    inner = {name: strict_form(each) for name, each in schema.get("properties", {}).items()}
    closed = (
        {"properties": inner, "required": [*inner], "additionalProperties": False} if "properties" in schema else {}
    )
    items = {"items": strict_form(schema["items"])} if "items" in schema else {}
    return schema | closed | items


def _asking_for(instance: dict[str, Any]) -> str:
    """Return a prompt for JSON in the words that the demo was trained on."""
    fields = [f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in instance.items()]
    listed = ", ".join(fields[:-1]) + " and " * (len(fields) > 1) + "".join(fields[-1:])
    return f"Give me a JSON object with {listed}." if fields else "Give me a JSON object."


def _describes_object(schema: dict[str, Any]) -> bool:
    if "type" in schema:
        return schema["type"] == "object"
    return isinstance(schema.get("const"), dict) or any(keyword in schema for keyword in _OF_OBJECTS)


def _json_schema(parameters: Any) -> Any:
    """A function's parameters, whose types are Python's."""
    schema = {key: value for key, value in parameters.items() if key not in ("properties", "items", "type")}
    if (kind := parameters.get("type", "any")) != "any":
        schema["type"] = _TYPES.get(kind, kind)
    if "properties" in parameters:
        schema["properties"] = {name: _json_schema(each) for name, each in parameters["properties"].items()}
    if "items" in parameters:
        schema["items"] = _json_schema(parameters["items"])
    return schema


def _accepted(each: ObjectSchema, accepts: Callable[[Constraint], None]) -> bool:
    try:
        accepts(Constraint.schema(each.schema, each.name))
    except ParameterError:
        return False
    return True


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
