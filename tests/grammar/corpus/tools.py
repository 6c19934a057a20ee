"""Parameters of tools and formats of answers, in the words that MCP servers and guides to OpenAI's API use.
`python -m tests.grammar.corpus.tools` prints a JSON Schema a line, by its name."""

import json
from typing import Any

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TEXT: dict[str, Any] = {"type": "string"}


def params(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    """Parameters of a tool."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return schema if required is None else {**schema, "required": required}


def strict(**properties: Any) -> dict[str, Any]:
    """As OpenAI's strict mode asks for: all keys required, and no others."""
    return {**params([*properties], **properties), "additionalProperties": False}


def enum(*values: Any) -> dict[str, Any]:
    """One of these strings."""
    return {"type": "string", "enum": [*values]}


def many(items: Any, **others: Any) -> dict[str, Any]:
    """An array."""
    return {"type": "array", "items": items, **others}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    """A nullable type, as strict mode writes what is optional."""
    return {**schema, "type": [schema["type"], "null"]}


EDIT = params(["oldText", "newText"], oldText={"type": "string", "description": "To replace"}, newText=TEXT)
NODE = params(["name"], name=TEXT, parent={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
NULLABLE = {"oneOf": [{"$ref": "#/components/schemas/Pet"}, {"type": "null"}]}
PET = params(["id", "name"], id={"type": "integer", "format": "int64"}, name=TEXT, tag={**TEXT, "nullable": True})
SORT = {"type": "string", "enum": ["created", "updated", "comments"], "default": "created"}

SCHEMAS: dict[str, dict[str, Any]] = {
    "mcp read file": params(["path"], path=TEXT, head={"type": "number"}, tail={"type": "number"})
    | {"$schema": DRAFT_7},
    "mcp read many": params(["paths"], paths=many(TEXT, minItems=1))
    | {"$schema": DRAFT_7, "additionalProperties": False},
    "mcp edit file": params(
        ["path", "edits"], path=TEXT, edits=many(EDIT), dryRun={"type": "boolean", "default": False}
    ),
    "mcp list": params(["path"], path=TEXT, sortBy={**enum("name", "size"), "default": "name"}),
    "mcp search": params(["path", "pattern"], path=TEXT, pattern=TEXT, excludePatterns=many(TEXT, default=[])),
    "mcp without parameters": {"type": "object", "properties": {}, "$schema": DRAFT_7, "additionalProperties": False},
    "mcp bare": {"type": "object"},
    "mcp fetch": params(
        ["url"],
        url={"type": "string", "format": "uri", "minLength": 1, "description": "To fetch"},
        max_length={"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000000, "default": 5000},
        raw={"type": "boolean", "default": False},
    ),
    "mcp issue": params(
        ["owner", "repo", "title"],
        owner=TEXT,
        repo=TEXT,
        title=TEXT,
        body=TEXT,
        labels=many(TEXT),
        assignees=many(TEXT),
        milestone={"type": "number"},
    ),
    "mcp issues": params(
        ["owner", "repo"],
        owner=TEXT,
        repo=TEXT,
        sort=SORT,
        direction=enum("asc", "desc"),
        per_page={"type": "number", "minimum": 1, "maximum": 100},
        since={**TEXT, "format": "date-time"},
    ),
    "mcp push": params(["files"], branch=TEXT, files=many(params(["path", "content"], path=TEXT, content=TEXT))),
    "mcp query": params(["sql"], sql=TEXT, params=many({"type": ["string", "number", "boolean", "null"]})),
    "mcp memory": params(
        ["entities"],
        entities=many(
            params(["name", "entityType", "observations"], name=TEXT, entityType=TEXT, observations=many(TEXT))
        ),
    ),
    "mcp thought": params(
        ["thought", "nextThoughtNeeded", "thoughtNumber"],
        thought=TEXT,
        nextThoughtNeeded={"type": "boolean"},
        thoughtNumber={"type": "integer", "minimum": 1},
        isRevision={"type": "boolean"},
        branchId=TEXT,
    ),
    "mcp screenshot": params(["name"], name=TEXT, selector=TEXT, width={"type": "number"}, height={"type": "number"}),
    "mcp headers": params(["url"], url=TEXT, headers={"type": "object", "additionalProperties": TEXT}),
    "mcp http names": params(["query"], query={"type": "object", "propertyNames": TEXT, "additionalProperties": {}}),
    "mcp either": {**params(None, id=TEXT, name=TEXT), "anyOf": [{"required": ["id"]}, {"required": ["name"]}]},
    "mcp just one": {**params(None, id=TEXT, name=TEXT), "oneOf": [{"required": ["id"]}, {"required": ["name"]}]},
    "mcp at least one": {**params(None, a=TEXT, b=TEXT, c=TEXT), "minProperties": 1, "additionalProperties": False},
    "mcp page": params(
        ["database_id"],
        database_id={**TEXT, "format": "uuid"},
        page_size={"type": "integer", "maximum": 100},
        filter={"type": "object", "additionalProperties": True},
        sorts=many({"type": "object"}),
    ),
    "mcp blocks": params(
        ["children"],
        children=many(
            {
                "oneOf": [
                    params(["type", "text"], type={"const": "paragraph"}, text=TEXT),
                    params(["type", "level"], type={"const": "heading"}, level={"enum": [1, 2, 3]}),
                    params(["type"], type={"const": "divider"}),
                ]
            }
        ),
    ),
    "mcp dependent": {**params(["repo"], repo=TEXT, branch=TEXT, sha=TEXT), "dependentRequired": {"sha": ["branch"]}},
    "mcp old dependent": {**params(None, card=TEXT, address=TEXT), "dependencies": {"card": ["address"]}},
    "mcp unique": params(["days"], days=many(enum("mon", "tue", "wed"), uniqueItems=True)),
    "mcp coordinates": params(
        ["at"],
        at={"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}], "minItems": 2, "maxItems": 2},
    ),
    "mcp old coordinates": params(
        ["at"],
        at={
            "type": "array",
            "items": [{"type": "number"}, {"type": "number"}],
            "additionalItems": False,
            "minItems": 2,
        },
    ),
    "mcp condition": {
        **params(["kind"], kind=enum("file", "url"), path=TEXT, url=TEXT),
        "if": {"properties": {"kind": {"const": "file"}}},
        "then": {"required": ["path"]},
        "else": {"required": ["url"]},
    },
    "mcp deprecated": params(
        ["q"], q={**TEXT, "deprecated": True, "x-order": 1}, limit={"type": "integer", "format": "int32"}
    ),
    "mcp not empty": params(["name"], name={**TEXT, "pattern": "\\S"}),
    "openapi pet": {**NULLABLE, "components": {"schemas": {"Pet": PET}}},
    "openapi pets": {**many({"$ref": "#/components/schemas/Pet"}), "components": {"schemas": {"Pet": PET}}},
    "openapi formats": params(
        None,
        a={**TEXT, "format": "byte"},
        b={**TEXT, "format": "binary"},
        c={**TEXT, "format": "password"},
        d={"type": "number", "format": "double"},
    ),
    "openai weather": strict(
        location={"type": "string", "description": "City and country"}, units=maybe(enum("c", "f", None))
    ),
    "openai mail": strict(to=TEXT, subject=TEXT, body=TEXT),
    "openai search": strict(
        query=TEXT,
        options=strict(
            num_results=maybe({"type": "number"}),
            domain_filter=maybe(TEXT),
            sort_by=maybe(enum("relevance", "date", None)),
        ),
    ),
    "openai steps": strict(steps=many(strict(explanation=TEXT, output=TEXT)), final_answer=TEXT),
    "openai entities": strict(attributes=many(TEXT), colors=many(TEXT), animals=many(TEXT)),
    "openai review": strict(
        is_violating={"type": "boolean"},
        category=maybe(enum("violence", "sexual", None)),
        explanation_if_violating=maybe(TEXT),
    ),
    "openai ui": {
        "$defs": {
            "ui": strict(
                type=enum("div", "header", "field"),
                label=TEXT,
                children=many({"$ref": "#/$defs/ui"}),
                attributes=many(strict(name=TEXT, value=TEXT)),
            )
        },
        "$ref": "#/$defs/ui",
    },
    "openai root recursion": strict(type=enum("div", "text"), children=many({"$ref": "#"})),
    "openai linked list": {
        **strict(list={"$ref": "#/$defs/node"}),
        "$defs": {
            "node": strict(value={"type": "number"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
        },
    },
    "openai any of": strict(
        item={"anyOf": [strict(name=TEXT, age={"type": "number"}), strict(number=TEXT, street=TEXT)]}
    ),
    "openai formats": strict(
        day={**TEXT, "format": "date"},
        at={**TEXT, "format": "date-time"},
        clock={**TEXT, "format": "time"},
        length={**TEXT, "format": "duration"},
        mail={**TEXT, "format": "email"},
        host={**TEXT, "format": "hostname"},
        four={**TEXT, "format": "ipv4"},
        six={**TEXT, "format": "ipv6"},
        id={**TEXT, "format": "uuid"},
    ),
    "openai limits": strict(
        name={**TEXT, "pattern": "^@[a-zA-Z0-9_]+$"},
        temperature={"type": "number", "minimum": -130, "maximum": 130},
        ages=many({"type": "integer", "multipleOf": 5}, minItems=1, maxItems=3),
    ),
    "parent": {**NODE, "$defs": {"node": NODE}},
}


def main() -> None:
    """Print the schemas."""
    for name, schema in SCHEMAS.items():
        print(json.dumps({"from": name.partition(" ")[0], "name": name, "schema": schema}))


if __name__ == "__main__":
    main()
