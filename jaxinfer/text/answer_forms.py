"""Which families' reasoning and tool calls are not taken apart yet. Their answers come as they are written."""

_UNPARSED = {
    "reasoning and tool calls": ("MiniMaxM2ForCausalLM", "Glm4MoeForCausalLM", "SeedOssForCausalLM"),
    "tool calls": (
        "Cohere2ForCausalLM",
        "CohereForCausalLM",
        "Glm4ForCausalLM",
        "GlmForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
        "GraniteMoeForCausalLM",
        "InternLM2ForCausalLM",
        "LlamaForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "MistralForCausalLM",
        "MixtralForCausalLM",
        "Olmo3ForCausalLM",
        "Phi3ForCausalLM",
    ),
}
_BY_NAME = {name: what for what, names in _UNPARSED.items() for name in names}


def unparsed(architecture: str) -> str:
    """What of the family's answers stays in the content, in a few words; empty where it is taken apart, or none."""
    what = _BY_NAME.get(architecture)
    return f"its own form of {what} is not taken apart yet" if what else ""
