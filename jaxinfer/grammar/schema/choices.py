"""Rules of choices: `oneOf`, `not` and `if`, written with `anyOf` and `allOf`."""

from jaxinfer.grammar.schema.facts import all_apart, disjoint, facts_of
from jaxinfer.grammar.schema.negation import negated
from jaxinfer.grammar.schema.references import Definitions
from jaxinfer.grammar.schema.walk import Object, Schema, with_also, without

_MOST_PAIRED = 32
"""Parts of a `oneOf` that are looked at in pairs."""


def one_of(schema: Object, definitions: Definitions) -> Schema:
    """`oneOf` as `anyOf`: each part without what fits another one as well."""
    if "oneOf" not in schema:
        return schema
    rest, parts = without(schema, "oneOf"), schema["oneOf"]
    if all_apart([facts_of({"allOf": [rest, each]}, definitions) for each in parts], definitions):
        alone = parts
    elif len(parts) > _MOST_PAIRED:
        return schema
    else:
        alone = [_alone(rest, parts, number, definitions) for number in range(len(parts))]
    if None in alone:
        return schema
    if "anyOf" in rest:
        return with_also(rest, {"anyOf": alone})
    return {"anyOf" if key == "oneOf" else key: alone if key == "oneOf" else value for key, value in schema.items()}


def _alone(rest: Object, parts: list[Schema], number: int, definitions: Definitions) -> Schema | None:
    """A part, and none of the others; None where that cannot be written."""
    own = parts[number]
    others = [each for other, each in enumerate(parts) if other != number]
    near = [each for each in others if not disjoint({"allOf": [rest, own]}, {"allOf": [rest, each]}, definitions)]
    if not near:
        return own
    far = [negated(each, definitions) for each in near]
    return None if None in far else {"allOf": [own, *far]}


def negations(schema: Object, definitions: Definitions) -> Schema:
    """`not` as what does not fit."""
    if "not" not in schema:
        return schema
    other = negated(schema["not"], definitions)
    if other is None or other is False:
        return schema if other is None else False
    return with_also(without(schema, "not"), other)


def conditions(schema: Object, definitions: Definitions) -> Schema:
    """`if` as a choice: it holds, and `then`; or it does not, and `else` does."""
    if "if" not in schema:
        return without(schema, "then", "else")
    rest, asked = without(schema, "if", "then", "else"), schema["if"]
    if "then" not in schema and "else" not in schema:
        return rest
    other = negated(asked, definitions)
    if other is None:
        return schema
    choices = [{"allOf": [asked, schema.get("then", True)]}, {"allOf": [other, schema.get("else", True)]}]
    return with_also(rest, {"anyOf": choices})
