"""CallSyntax: how a model writes its calls, for what constrains them; `answer.py` and its like read the same."""

import json
from typing import NamedTuple


class CallSyntax(NamedTuple):
    """Syntax of calls in one form. trigger: begins a call, and no other text has it. head: between the trigger and a
    name as JSON. middle: between that and the arguments, a JSON object. end: after them. between: two calls.
    whitespace: in the arguments, as `Constraint` has it."""

    trigger: str
    head: str
    middle: str
    end: str
    between: str
    whitespace: str | None

    def begin(self, name: str) -> str:
        """A call of this function, up to its arguments."""
        return self.trigger + self.head + json.dumps(name) + self.middle


HERMES = CallSyntax("<tool_call>", '\n{"name": ', ', "arguments": ', "}\n</tool_call>", "\n", "")
"""Syntax of calls in Qwen's and Hermes' templates."""
