"""Constraints in Python: what is no such thing is told by name."""

import pytest

from jaxinfer import Constraint, SamplingParams
from jaxinfer.errors import ParameterError


def test_sampling_parameters_take_a_constraint_or_an_object_of_https_form() -> None:
    with pytest.raises(
        ParameterError, match=r'^structured_outputs: must be \{"json": schema\}, .* Constraint, not list$'
    ):
        SamplingParams(structured_outputs=["a"])  # pyright: ignore[reportArgumentType]
    given = SamplingParams(structured_outputs={"regex": "a"})  # pyright: ignore[reportArgumentType]
    assert given.structured_outputs == Constraint.text("regex", "a", "structured_outputs.regex")


@pytest.mark.parametrize("kind", ["json_schema", "choice", "structural_tag"])
def test_text_is_for_regexes_and_grammars(kind: str) -> None:
    with pytest.raises(ParameterError, match=rf"'{kind}' must be regex or grammar; others have a function each"):
        Constraint.text(kind, "a")  # pyright: ignore[reportArgumentType]
