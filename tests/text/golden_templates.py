"""Chat templates of well-known models, each with what transformers renders from it (golden_renders.json)."""

GOLDEN_TEMPLATES = [
    "meta-llama-Llama-3.1-8B-Instruct.jinja", "meta-llama-Llama-3.2-3B-Instruct.jinja",
    "meta-llama-Llama-3.3-70B-Instruct.jinja", "Qwen-Qwen2.5-7B-Instruct.jinja", "Qwen-Qwen3-0.6B.jinja",
    "Qwen-QwQ-32B.jinja", "google-gemma-2-2b-it.jinja", "microsoft-Phi-3.5-mini-instruct.jinja",
    "ibm-granite-granite-3.3-2B-Instruct.jinja", "mistralai-Mistral-Nemo-Instruct-2407.jinja",
    "Mistral-Small-3.2-24B-Instruct-2506.jinja", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja", "openai-gpt-oss-120b.jinja",
    "HuggingFaceTB-SmolLM3-3B.jinja", "Qwen3-Coder.jinja",
]  # fmt: skip
