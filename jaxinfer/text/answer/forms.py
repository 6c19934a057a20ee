"""Forms of reasoning and tool calls that are not taken apart yet: answers have them as the model writes them."""

from typing import Literal, NamedTuple

_REASONING = {
    "<seed:think>": "Seed-OSS",
    "[THINK]": "Mistral",
    "<|START_THINKING|>": "Cohere",
    "<response>": "Granite 3",
}
"""Families by what their chat templates show, of reasoning."""

_TOOL_CALLS = {
    "[TOOL_CALLS]": "Mistral",
    "<seed:tool_call>": "Seed-OSS",
    "<minimax:tool_call>": "MiniMax-M2",
    "<arg_key>": "GLM-4.5",
    "<parameter=": "Qwen3-Coder",
    "<function=": "Functionary",
    "<|recipient|>": "Functionary",
    ">>>all": "Functionary",
    "<tool_calls>": "Apriel or Hunyuan",
    "<|python_tag|>": "Llama 3",
    '"parameters": dictionary of': "Llama 3",
    "<|tool_call|>": "Granite 3 or Phi-4-mini",
    "tool▁calls▁begin": "DeepSeek",
    "<|START_ACTION|>": "Cohere",
    "Action: ```json": "Cohere",
    "<function_calls>": "OLMo 3",
}
"""Signs of tool calls in a chat template, and the family whose form they show."""

_BY_ARCHITECTURE = {
    "Cohere2ForCausalLM": "reasoning and tool calls",
    "CohereForCausalLM": "tool calls",
    "Glm4ForCausalLM": "tool calls",
    "Glm4MoeForCausalLM": "tool calls",
    "GlmForCausalLM": "tool calls",
    "GraniteForCausalLM": "tool calls of Granite 3",
    "GraniteMoeForCausalLM": "tool calls of Granite 3",
    "InternLM2ForCausalLM": "tool calls",
    "LlamaForCausalLM": "tool calls of Llama 3",
    "MiniMaxM2ForCausalLM": "tool calls",
    "Ministral3ForCausalLM": "reasoning and tool calls",
    "MistralForCausalLM": "tool calls, and reasoning of Magistral",
    "MixtralForCausalLM": "tool calls",
    "Olmo3ForCausalLM": "tool calls",
    "Phi3ForCausalLM": "tool calls of Phi-4-mini",
    "Qwen3MoeForCausalLM": "tool calls of Qwen3-Coder",
    "SeedOssForCausalLM": "reasoning and tool calls",
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
