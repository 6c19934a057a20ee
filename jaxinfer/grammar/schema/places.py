"""The place in a refused schema that is to blame."""

from collections.abc import Callable, Iterator
from typing import Any

from jaxinfer.grammar.schema.references import followed, pointer_to
from jaxinfer.grammar.schema.walk import Path, subschemas


def place_of(schema: Any, is_to_blame: Callable[[Any], bool]) -> str:
    """Return the place in a refused schema that is to blame, as a JSON pointer: the innermost schema that is to blame
    by itself, with the definitions of the whole. `#` where none inside is."""
    defined = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    at: Path = ()
    inner: Any = schema
    seen: set[Path] = {at}
    while True:
        for path, candidate in _followed(schema, inner, at):
            if path not in seen and isinstance(candidate, dict) and is_to_blame({**defined, **candidate}):
                at, inner = path, candidate
                seen.add(path)
                break
        else:
            return pointer_to(at)


def _followed(whole: Any, schema: Any, at: Path) -> Iterator[tuple[Path, Any]]:
    """Yield what is directly inside a schema, and what it refers to, with the way from the root."""
    yield from ((at + path, inner) for path, inner in subschemas(schema))
    if (found := followed(whole, schema.get("$ref"))) is not None:
        yield found
