"""Flags of other engines whose command lines start here: taken, and told to be without effect."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxinfer.errors import ParameterError


class WithoutEffect(NamedTuple):
    """A flag of another engine. reason: why it has no effect. values: those that it may have; empty: it has none, None:
    it has any."""

    reason: str
    values: tuple[str, ...] | None = ()


_COMPILED = "every step is a compiled program; --compile says when"
_TOOLS = "calls are read in the form that the chat template shows; --tool-call-parser names another"
_PRINTED = "requests are logged with --access-log alone"
_OVERLAP = "steps are always scheduled while the device works"
_PROCESSES = "JAX has one process a host"
_MEDIA = "only text is served"

WITHOUT_EFFECT: Mapping[str, WithoutEffect] = {
    "--async-scheduling": WithoutEffect(_OVERLAP),
    "--compilation-config": WithoutEffect(_COMPILED, None),
    "--disable-custom-all-reduce": WithoutEffect("XLA chooses how devices exchange"),
    "--disable-fastapi-docs": WithoutEffect("there are no pages of documents"),
    "--disable-log-requests": WithoutEffect(_PRINTED),
    "--disable-uvicorn-access-log": WithoutEffect(_PRINTED),
    "--distributed-executor-backend": WithoutEffect(_PROCESSES, None),
    "--enable-auto-tool-choice": WithoutEffect(_TOOLS),
    "--enable-prompt-tokens-details": WithoutEffect("they are always told"),
    "--enable-request-id-headers": WithoutEffect("they are always sent"),
    "--enforce-eager": WithoutEffect(_COMPILED),
    "--generation-config": WithoutEffect("the model's own is followed", ("auto",)),
    "--limit-mm-per-prompt": WithoutEffect(_MEDIA, None),
    "--load-format": WithoutEffect("safetensors are read", ("auto", "safetensors")),
    "--max-log-len": WithoutEffect("texts of requests are not logged", None),
    "--max-num-batched-encoder-input-tokens": WithoutEffect(_MEDIA, None),
    "--max-parallel-loading-workers": WithoutEffect("files are read by several threads", None),
    "--mm-processor-kwargs": WithoutEffect(_MEDIA, None),
    "--no-enable-log-requests": WithoutEffect(_PRINTED),
    "--num-scheduler-steps": WithoutEffect(_OVERLAP, None),
    "--runner": WithoutEffect("models generate", ("auto", "generate")),
    "--skip-mm-profiling": WithoutEffect(_MEDIA),
    "--swap-space": WithoutEffect("a request that gives its blocks away is computed again", None),
    "--task": WithoutEffect("models generate", ("auto", "generate")),
    "--tokenizer-mode": WithoutEffect("the model's own files are followed", ("auto", "hf", "slow")),
    "--trust-remote-code": WithoutEffect("code of a model's folder is never run"),
    "--uvicorn-log-level": WithoutEffect("the server's own --log-level counts", None),
    "--worker-use-ray": WithoutEffect(_PROCESSES),
}
"""vLLM's flags, as its users' command lines have them."""


def taken_without_effect(arguments: Sequence[str], ours: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without the flags of WITHOUT_EFFECT, and a warning for each. ours: the command's own flags, which
    none hides.

    Raises ParameterError for one without its value, or with one that would have an effect.
    """
    kept, warnings, rest = list[str](), list[str](), list(arguments)
    while rest:
        argument = rest.pop(0)
        flag, has_value, value = argument.partition("=")
        known = WITHOUT_EFFECT.get(flag.replace("_", "-")) if flag.startswith("--") else None
        if known is None or flag.replace("_", "-") in ours:
            kept.append(argument)
            continue
        if known.values != ():
            if not has_value and (not rest or rest[0].startswith("--")):
                raise ParameterError(flag, "needs a value")
            value = value if has_value else rest.pop(0)
            if known.values is not None and value not in known.values:
                raise ParameterError(flag, f"{value!r} is not supported: {known.reason}; leave the flag out")
        warnings.append(f"{flag} has no effect: {known.reason}")
    return kept, warnings
