"""Forms of reasoning and tool calls that are not taken apart yet: answers have them as the model writes them."""

from typing import Literal, NamedTuple

_REASONING = {
    "<|START_THINKING|>": "Cohere",
    "<response>": "Granite 3",
}
"""Families by what their chat templates show, of reasoning."""

_TOOL_CALLS = {
    "<|recipient|>": "Functionary 3.2",
    ">>>all": "Functionary 3.2",
    "<tool_calls>": "Hunyuan",
    "Action: ```json": "Command R",
    "<function_calls>": "OLMo 3",
    "<|python_start|>": "Llama 4",
    "tool_code": "Gemma 3",
}
"""Signs of tool calls in a chat template, and the family whose form they show."""

_BY_ARCHITECTURE = {
    "Cohere2ForCausalLM": "reasoning",
    "CohereForCausalLM": "tool calls",
    "GraniteForCausalLM": "reasoning of Granite 3",
    "GraniteMoeForCausalLM": "reasoning of Granite 3",
    "LlamaForCausalLM": "Python calls of Llama 3.2",
    "Olmo3ForCausalLM": "tool calls",
}
"""Other models of an architecture may have forms that are taken apart: their templates decide."""


class UnparsedForm(NamedTuple):
    """A form that a chat template shows and that is not parsed. family: models that have the form, empty if unknown."""

    what: Literal["reasoning", "tool calls"]
    family: str = ""

    def __str__(self) -> str:
        form = f"{self.family}'s form" if self.family else "its own form"
        if self.what == "reasoning":
            return f"reasoning in {form} is not taken apart yet: it stays in the content"
        return f"tool calls in {form} are not taken apart yet: requests with tools are refused"


def unparsed_forms(template: str, *, takes_tools: bool, knows_calls: bool) -> list[UnparsedForm]:
    """The forms in a chat template that are not taken apart.

    takes_tools: the template reads them. knows_calls: the form of its calls is taken apart.
    """
    found = []
    reasoning = _family(template, _REASONING)
    if reasoning:
        found.append(UnparsedForm("reasoning", reasoning))
    if takes_tools and not knows_calls:
        found.append(UnparsedForm("tool calls", _family(template, _TOOL_CALLS)))
    return found


def unparsed(architecture: str) -> str:
    """Describe the parts of an architecture's answers that are not parsed, in a few words; empty if there are none."""
    what = _BY_ARCHITECTURE.get(architecture)
    return f"not taken apart yet: {what}" if what else ""


def _family(template: str, families: dict[str, str]) -> str:
    return next((family for mark, family in families.items() if mark in template), "")
