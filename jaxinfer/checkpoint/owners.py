"""Owners on the hub by the beginning of a model's name, for ids that are written without one."""

import re
from pathlib import Path

_OWNERS = (
    (r"(qwen|qwq)", ("Qwen",)),
    (r"(meta-)?llama-[2-9]|llama-guard", ("meta-llama",)),
    (r"tinyllama", ("TinyLlama",)),
    (r"(mistral|mixtral|ministral|codestral|devstral|magistral|mathstral)-", ("mistralai",)),
    (r"(gemma|codegemma|medgemma)-", ("google",)),
    (r"phi-", ("microsoft",)),
    (r"smollm", ("HuggingFaceTB",)),
    (r"deepseek-", ("deepseek-ai",)),
    (r"gpt-oss", ("openai",)),
    (r"gpt2", ("openai-community",)),
    (r"granite-", ("ibm-granite", "ibm")),
    (r"olmoe?-", ("allenai",)),
    (r"(nous-)?hermes-", ("NousResearch",)),
    (r"falcon", ("tiiuae",)),
    (r"yi-", ("01-ai",)),
    (r"internlm", ("internlm",)),
    (r"(glm|chatglm)", ("zai-org", "THUDM")),
    (r"starcoder", ("bigcode",)),
    (r"stablelm", ("stabilityai",)),
    (r"(aya|c4ai)-", ("CohereLabs",)),
    (r"minimax-", ("MiniMaxAI",)),
    (r"kimi-", ("moonshotai",)),
    (r"(llama-.*|)nemotron", ("nvidia",)),
    (r"(opt|galactica)-", ("facebook",)),
    (r"pythia-", ("EleutherAI",)),
)

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")


def candidates(name: str, cache: Path) -> list[str]:
    """Hub ids that a name without an owner may stand for, the likeliest first; empty for what is no such name.

    cache: the hub's local cache, whose models come first: `models--OWNER--NAME` is a folder of it.
    """
    if not _NAME.fullmatch(name):
        return []
    cached = sorted(folder.name.split("--")[1] for folder in cache.glob(f"models--*--{name}"))
    known = [owner for pattern, owners in _OWNERS if re.match(pattern, name, re.IGNORECASE) for owner in owners]
    return [f"{owner}/{name}" for owner in dict.fromkeys([*cached, *known])]
