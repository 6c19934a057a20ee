"""Refused grammars are remembered, and are not compiled again."""

import pytest

from jaxinfer.constraint import Constraint
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.refusals import Refusals
from jaxinfer.sampling import SamplingParams
from tests.grammar.walks import END, FILE, SIZE, compiled


def test_a_refused_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, made = Grammars(FILE, SIZE, (END,)), []
    monkeypatch.setattr(grammars, "_compiled", lambda one, make=grammars._compiled: made.append(one) or make(one))
    told = []
    for param in ("here", "there"):
        constraint = Constraint.schema({"type": "array", "contains": {}}, param)
        with pytest.raises(ParameterError) as error:
            compiled(grammars, constraint)
        told.append(str(error.value))
        assert grammars.is_kept(SamplingParams(structured_outputs=constraint), frozenset({END}))
    assert len(made) == 1
    assert told[0].removeprefix("here") == told[1].removeprefix("there")
    assert grammars.stats().grammars_refused == 2
    grammars.close()


def test_a_refusal_is_remembered_for_a_while_with_the_field_it_was_for() -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    whole, part = Constraint.text("regex", "(", "x"), Constraint.structural_tag({"format": {
        "type": "const_string", "value": "a"}}, "tags")  # fmt: skip
    refusals.add(whole, ParameterError("x", "is refused"))
    refusals.add(part, ParameterError("tools[1]", "is refused"))
    found = [refusals.find(each) for each in (Constraint.text("regex", "(", "y"), part)]
    assert [str(each) for each in found] == ["y: is refused", "tools[1]: is refused"]
    assert refusals.find(Constraint.text("regex", "[", "x")) is None
    assert refusals.find(whole.with_whitespace(" ")) is None
    now = 601.0
    assert refusals.find(whole) is None


def test_few_are_remembered() -> None:
    refusals = Refusals()
    for number in range(2000):
        refusals.add(Constraint.text("regex", f"({number}", "x"), ParameterError("x", "is refused"))
    assert len(refusals._kept) == 1024
    assert refusals.find(Constraint.text("regex", "(1999", "x")) is not None
