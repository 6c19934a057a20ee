"""Flags of other engines, under our names; where ours means something else a hint says what to give."""

from collections.abc import Callable, Mapping, Sequence

from jaxinfer.errors import ParameterError

Given = tuple[str, ...]
"""A flag and its value, as arguments."""


def _renamed(flag: str) -> Callable[[str, str], Given]:
    return lambda alias, value: (flag, value)


def _watermark(alias: str, value: str) -> Given:
    """A threshold is a share of the KV cache in use; ours is the share that stays free."""
    try:
        used = float(value)
    except ValueError:
        used = -1.0
    if not 0.01 <= used <= 1.0:
        raise ParameterError(alias, f"{value!r} must be at least 0.01 and at most 1: a share of the KV cache")
    return "--kv-watermark", f"{1.0 - used:.6g}"


VALUES = {"--dtype": {"half": "float16", "float": "float32"}}
"""Values of our flags under vLLM's names."""

ALIASES: Mapping[str, Callable[[str, str], Given]] = {
    "-q": _renamed("--quantization"),
    "-tp": _renamed("--tensor-parallel-size"),
    "--tp-size": _renamed("--tensor-parallel-size"),
    "-pp": _renamed("--pipeline-parallel-size"),
    "--pp-size": _renamed("--pipeline-parallel-size"),
    "--max-batch-size": _renamed("--max-num-seqs"),
    "--max-decode-batch": _renamed("--max-num-seqs"),
    "--max-running-requests": _renamed("--max-num-seqs"),
    "--num-gpu-blocks-override": _renamed("--num-blocks"),
    "--max-seq-len": _renamed("--max-model-len"),
    "--context-length": _renamed("--max-model-len"),
    "--chunked-prefill-size": _renamed("--max-num-batched-tokens"),
    "--schedule-policy": _renamed("--scheduling-policy"),
    "--random-seed": _renamed("--seed"),
    "--dist-init-addr": _renamed("--coordinator"),
    "--nnodes": _renamed("--num-hosts"),
    "--node-rank": _renamed("--host-id"),
    "--prefill-chunk-size": _renamed("--long-prefill-token-threshold"),
    "--memory-threshold": _watermark,
}
"""Aliases of every command. A function of the alias and its value gives our arguments."""

MODEL_ALIASES = ("--model", "--model-id", "--model-path", "--weight-path")
"""Flags of other servers that name MODEL, which is given without a flag here."""

SAMPLING_ALIASES: Mapping[str, Callable[[str, str], Given]] = {
    "--sample-len": _renamed("--max-tokens"),
    "--repeat-penalty": _renamed("--repetition-penalty"),
}
"""Aliases of the commands that generate in the terminal; elsewhere these are parameters of each request."""

SWITCHES = {"--cuda-graphs": ("auto", "on", "off"), "--thinking": ("auto", "on", "off")}
"""Flags of ours that take one of these; without one they mean `on`."""

_REQUEST = "is a parameter of each request here, {}, and a flag of `jaxinfer generate` and `chat`"

HINTS = {
    "--max-total-tokens": "give --max-model-len for the tokens of a request, or --num-blocks for those of all requests",
    "--batching-mode": "batching is always continuous; --max-num-seqs bounds how many requests run at once",
    "--kv-cache-backend": "the KV cache is always paged; --attention-backend names the attention's implementation",
    "--cache-max-entries": "give --prefix-cache-max-tokens, which counts tokens",
    "--max-prefill-tokens": "give --max-num-batched-tokens, which counts all tokens of a step",
    "--mem-fraction-static": "give --gpu-memory-utilization, the share of memory that everything may take",
    "--max-prefill-batch": "give --max-num-partial-prefills, or --max-num-batched-tokens for the tokens of a step",
    "--prefix-cache": "give --enable-prefix-caching (the default) or --no-enable-prefix-caching",
    "--disable-radix-cache": "give --no-enable-prefix-caching",
    "--disable-cuda-graph": "give --cuda-graphs off",
    "--ep-size": "give --enable-expert-parallel; experts are split over the devices of --tensor-parallel-size",
    "--thinking": "is a parameter of each request here, enable_thinking, and a flag of `jaxinfer chat`",
    "--sample-len": _REQUEST.format("max_tokens"),
    "--repeat-penalty": _REQUEST.format("repetition_penalty"),
}
"""Flags of other servers that have no alias, and the advice that an error gives."""


def with_our_names(arguments: Sequence[str], ours: Sequence[str]) -> list[str]:
    """The arguments with aliases replaced. ours: the names of the command's own flags, which no alias hides.

    Raises ParameterError for an alias without a value, for two models, and for what has a hint.
    """
    aliases = {**ALIASES, **(SAMPLING_ALIASES if "--max-tokens" in ours else {})}
    models: list[str] = []
    replaced: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, has_value, value = argument.partition("=")
        name = flag.replace("_", "-") if flag.startswith("--") else flag
        if name in ours:
            if name in VALUES and (has_value or rest):
                value = value if has_value else rest.pop(0)
                replaced += [name, VALUES[name].get(value, value)]
                continue
            bare = name in SWITCHES and not has_value and (not rest or rest[0] not in SWITCHES[name])
            replaced += [flag, "on"] if bare else [argument]
        elif name in aliases or name in MODEL_ALIASES:
            if not has_value and (not rest or rest[0].startswith("--")):
                raise ParameterError(flag, "needs a value")
            value = value if has_value else rest.pop(0)
            if name in aliases:
                replaced += aliases[name](flag, value)
            else:
                models.append(value)
        elif name in HINTS:
            raise ParameterError(flag, HINTS[name])
        else:
            replaced.append(argument)
    if len(models) > 1:
        raise ParameterError("model", f"is given more than once: {', '.join(models)}")
    # In front, where no flag of several values can take it for one of them.
    return models + replaced
