"""vLLM's flags, as its tests give them, in ours."""

# Flags that we have under the same name and with the same values.
SAME = {
    "--max-model-len", "--max-num-batched-tokens", "--enable-chunked-prefill", "--no-enable-prefix-caching",
    "--tool-call-parser", "--reasoning-parser", "--served-model-name", "--api-key", "--port",
    "--return-tokens-as-token-ids", "--enable-force-include-usage",
}  # fmt: skip
# Values that have another name with us.
VALUES: dict[tuple[str, str | None], str] = {("--reasoning-parser", "qwen3"): "think"}
# What vLLM leaves in the text unless it is told a parser.
DEFAULTS = {"--reasoning-parser": "none", "--tool-call-parser": "none"}
# Flags with a value, and flags alone, that say how vLLM runs or turn on what we always do or do not have at all. The
# tests of what we do not have fail, and are listed with that reason.
IGNORED_WITH_VALUE = {
    "--dtype", "--max-num-seqs", "--gpu-memory-utilization", "--lora-modules", "--max-lora-rank", "--max-cpu-loras",
    "--max-logprobs", "--root-path", "--show-hidden-metrics-for-version", "--structured-outputs-config.backend",
    "--load-format", "--runner", "--watermark-config",
}  # fmt: skip
IGNORED_ALONE = {
    "--enforce-eager", "--enable-lora", "--enable-prompt-tokens-details", "--enable-auto-tool-choice",
    "--enable-tokenizer-info-endpoint", "--enable-server-load-tracking", "--enable-per-request-metrics",
    "--enable-request-id-headers", "--skip-tokenizer-init",
}  # fmt: skip


def translated(arguments: list[str]) -> list[str]:
    """Our flags for vLLM's; of a flag that comes twice the last counts. ValueError for a flag that is on no list."""
    given = {**DEFAULTS, **dict(_pairs(arguments))}
    flags: list[str] = []
    for flag, value in given.items():
        if flag in SAME:
            value = VALUES.get((flag, value), value)
            flags += [flag] if value is None else [flag, value]
        elif flag not in IGNORED_ALONE and flag not in IGNORED_WITH_VALUE:
            raise ValueError(f"{flag}: not in the tables of {__name__}")
    return flags


def _pairs(arguments: list[str]) -> list[tuple[str, str | None]]:
    """Each flag with its value, None where it stands alone."""
    pairs: list[tuple[str, str | None]] = []
    for argument in arguments:
        if argument.startswith("--"):
            flag, equals, value = argument.partition("=")
            pairs.append((flag, value if equals else None))
        else:
            pairs[-1] = (pairs[-1][0], argument)
    return pairs
