"""Structural tags: a text of free text and tagged parts as one JSON value, read from what clients send."""

from collections.abc import Callable, Iterator
from typing import Any

from jaxinfer.errors import ParameterError

Node = dict[str, Any]
"""XGrammar's `format`: an object with a `type`, one of TYPES, and its fields, checked. Beside them a schema, a regex
and a grammar have `param`, the field that they came from; a schema may have `whitespace`, what may stand between its
tokens; free text, a regex and a grammar `excludes`, strings that the text must not contain."""

MAX_ITEMS = 1000
"""Elements, tags or triggers of one list."""


def read_structural_tag(value: object, param: str) -> Node:
    """The format of a structural tag: XGrammar's (`format`), or vLLM's older form (`structures` and `triggers`).

    Free text (`any_text`, `triggered_tags`) must be what a text ends with, or all that is in a tag with an end. param:
    names the value in errors. Raises ParameterError for what is not known, or cannot be told apart.
    """
    holder = _object(value, param)
    if holder.get("type", "structural_tag") != "structural_tag":
        raise ParameterError(f"{param}.type", f"{holder['type']!r} must be structural_tag")
    if ("format" in holder) == ("structures" in holder):
        raise ParameterError(param, "needs either format, or structures and triggers")
    known = ("type", "format") if "format" in holder else ("type", "structures", "triggers")
    if unknown := [name for name in holder if name not in known]:
        raise ParameterError(f"{param}.{unknown[0]}", f"is not supported; {', '.join(known)} are")
    if "format" in holder:
        return _node(holder["format"], f"{param}.format", last=True)
    return _older(holder, param)


def leaves(node: Node) -> Iterator[Node]:
    """Its schemas, regexes and grammars."""
    if "param" in node:
        yield node
    for inner in (*node.get("elements", ()), *node.get("tags", ()), *filter(None, [node.get("content")])):
        yield from leaves(inner)


def without(node: Node, strings: list[str], param: str) -> Node:
    """Return the tag with free text that contains none of these strings outside of JSON. Raises ParameterError for a
    string that has one."""
    for name in ("value", "begin", "end", "separator"):
        if found := next((each for each in strings if each in node.get(name, "")), None):
            raise ParameterError(param, f"has {found!r}, which begins a tool call; give tool_choice `none`")
    changed: Node = {name: [without(each, strings, param) for each in node[name]] for name in _LISTS if name in node}
    if "content" in node:
        changed["content"] = without(node["content"], strings, param)
    if node["type"] in ("any_text", "triggered_tags", "regex", "grammar"):
        changed["excludes"] = [*node.get("excludes", ()), *strings]
    return {**node, **changed}


_LISTS = ("elements", "tags")


def _older(holder: dict[str, Any], param: str) -> Node:
    tags = [_older_tag(each, where) for each, where in _items(holder, "structures", param)]
    return _triggered(holder, param, tags)


def _older_tag(value: object, where: str) -> Node:
    structure = _object(value, where)
    content = {"type": "json_schema", "json_schema": _schema(structure, "schema", where), "param": f"{where}.schema"}
    return {"type": "tag", "begin": _string(structure, "begin", where), "content": content,
            "end": _string(structure, "end", where, empty=True)}  # fmt: skip


def _node(value: object, where: str, *, last: bool) -> Node:
    """last: nothing follows it."""
    node = _object(value, where)
    kind = node.get("type")
    if not isinstance(kind, str) or kind not in TYPES:
        raise ParameterError(f"{where}.type", f"{kind!r} is not supported; {', '.join(TYPES)} are")
    read, fields = TYPES[kind]
    if unknown := [name for name, given in node.items() if name not in ("type", *fields) and given is not None]:
        raise ParameterError(
            f"{where}.{unknown[0]}", f"is not supported in {kind}; {', '.join(fields) or 'nothing'} is"
        )
    return read(node, where, last)


def _const(node: Node, where: str, last: bool) -> Node:
    return {"type": "const_string", "value": _string(node, "value", where)}


def _json(node: Node, where: str, last: bool) -> Node:
    if node.get("style") not in (None, "json"):
        raise ParameterError(f"{where}.style", "must be json")
    schema = _schema(node, "json_schema", where)
    return {"type": "json_schema", "json_schema": schema, "param": f"{where}.json_schema"}


def _regex(node: Node, where: str, last: bool) -> Node:
    pattern = _string(node, "pattern", where)
    return {"type": "regex", "pattern": pattern, "param": f"{where}.pattern"}


def _grammar(node: Node, where: str, last: bool) -> Node:
    return {"type": "grammar", "grammar": _string(node, "grammar", where), "param": f"{where}.grammar"}


def _any_text(node: Node, where: str, last: bool) -> Node:
    if not last:
        raise ParameterError(where, "free text must be what the text ends with, or all that is in a tag with an end")
    return {"type": "any_text", "excludes": _strings(node, "excludes", where)}


def _sequence(node: Node, where: str, last: bool) -> Node:
    items = _items(node, "elements", where)
    at_end = [last and number == len(items) for number in range(1, len(items) + 1)]
    elements = [_node(each, path, last=end) for (each, path), end in zip(items, at_end, strict=True)]
    return {"type": "sequence", "elements": elements}


def _or(node: Node, where: str, last: bool) -> Node:
    return {"type": "or", "elements": [_node(each, path, last=last) for each, path in _items(node, "elements", where)]}


def _tag(node: Node, where: str, last: bool) -> Node:
    begin, end = _string(node, "begin", where), _string(node, "end", where, empty=True)
    inner = _object(node.get("content"), f"{where}.content")
    whole = bool(end) and inner.get("type") == "any_text"
    content = _node(inner, f"{where}.content", last=whole or (last and not end))
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _triggered_tags(node: Node, where: str, last: bool) -> Node:
    if not last:
        raise ParameterError(where, "free text must be what the text ends with")
    return _triggered(node, where, _tags(node, where))


def _triggered(node: Node, where: str, tags: list[Node]) -> Node:
    triggers = _strings(node, "triggers", where)
    if not triggers:
        raise ParameterError(f"{where}.triggers", f"must be a list of 1 to {MAX_ITEMS:,} strings")
    _check_triggers(triggers, tags, where)
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, **_flags(node, where),
            "excludes": _strings(node, "excludes", where)}  # fmt: skip


def _check_triggers(triggers: list[str], tags: list[Node], where: str) -> None:
    for each in triggers:
        if any(other is not each and other in each for other in triggers):
            raise ParameterError(f"{where}.triggers", f"{each!r} contains another one")
    for number, tag in enumerate(tags):
        if not tag["begin"].startswith(tuple(triggers)):
            raise ParameterError(f"{where}: tag {number}", f"begins with none of the triggers: {tag['begin'][:50]!r}")
    if idle := [each for each in triggers if not any(tag["begin"].startswith(each) for tag in tags)]:
        raise ParameterError(f"{where}.triggers", f"no tag begins with {idle[0]!r}")


def _separated(node: Node, where: str, last: bool) -> Node:
    separator = _string(node, "separator", where, empty=True)
    return {"type": "tags_with_separator", "tags": _tags(node, where), "separator": separator, **_flags(node, where)}


def _tags(node: Node, where: str) -> list[Node]:
    found = []
    for each, path in _items(node, "tags", where):
        if _object(each, path).get("type", "tag") != "tag":
            raise ParameterError(f"{path}.type", "must be tag")
        found.append(_node({"type": "tag", **_object(each, path)}, path, last=False))
    return found


def _flags(node: Node, where: str) -> dict[str, bool]:
    found = {name: node.get(name) or False for name in ("at_least_one", "stop_after_first")}
    for name, flag in found.items():
        if not isinstance(flag, bool):
            raise ParameterError(f"{where}.{name}", "must be true or false")
    return found


_Read = Callable[[Node, str, bool], Node]
_FLAGS = ("at_least_one", "stop_after_first")
TYPES: dict[str, tuple[_Read, tuple[str, ...]]] = {
    "const_string": (_const, ("value",)),
    "json_schema": (_json, ("json_schema", "style")),
    "regex": (_regex, ("pattern",)),
    "grammar": (_grammar, ("grammar",)),
    "any_text": (_any_text, ("excludes",)),
    "sequence": (_sequence, ("elements",)),
    "or": (_or, ("elements",)),
    "tag": (_tag, ("begin", "content", "end")),
    "triggered_tags": (_triggered_tags, ("triggers", "tags", *_FLAGS, "excludes")),
    "tags_with_separator": (_separated, ("tags", "separator", *_FLAGS)),
}
"""Reader and fields of each type."""


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ParameterError(where, f"must be an object, not {type(value).__name__}")
    return value


def _string(node: Node, name: str, where: str, *, empty: bool = False) -> str:
    value = node.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ParameterError(f"{where}.{name}", f"must be a string{'' if empty else ' that is not empty'}")
    return value


def _strings(node: Node, name: str, where: str) -> list[str]:
    values = node.get(name) or []
    if not isinstance(values, list) or len(values) > MAX_ITEMS:
        raise ParameterError(f"{where}.{name}", f"must be a list of at most {MAX_ITEMS:,} strings")
    if not all(isinstance(each, str) and each for each in values):
        raise ParameterError(f"{where}.{name}", "each must be a string that is not empty")
    return list(dict.fromkeys(values))


def _items(node: Node, name: str, where: str) -> list[tuple[object, str]]:
    values = node.get(name)
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_ITEMS:
        raise ParameterError(f"{where}.{name}", f"must be a list of 1 to {MAX_ITEMS:,} objects")
    return [(each, f"{where}.{name}[{number}]") for number, each in enumerate(values)]


def _schema(node: Node, name: str, where: str) -> dict[str, Any]:
    schema = node.get(name)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise ParameterError(f"{where}.{name}", "must be a JSON Schema: an object or true")
    return schema
