"""Flags that other servers have and this one has not: each is told why, instead of that it is unknown."""

from collections.abc import Sequence

from jaxinfer.errors import ParameterError

_REPLICAS = "is not needed: each replica is a server of its own"
_ADAPTERS = "adapters are not supported yet"
_DRAFTS = 'give --speculative-config, as \'{"method": "ngram", "num_speculative_tokens": 4}\''

ABSENT = {
    "--data-parallel-size": _REPLICAS,
    "-dp": _REPLICAS,
    "--dp-size": _REPLICAS,
    "--calculate-kv-scales": "is not needed: --kv-cache-dtype int8 measures its scales; fp8 has the checkpoint's, or 1",
    "--enable-lora": _ADAPTERS,
    "--lora-modules": _ADAPTERS,
    "--speculative-model": 'give --speculative-config, as \'{"model": "FOLDER", "num_speculative_tokens": 3}\'',
    "--speculative-algorithm": _DRAFTS,
    "--num-speculative-tokens": _DRAFTS,
    "--ngram-prompt-lookup-max": _DRAFTS,
    "--lazy-compile": "give --compile lazy",
    "--no-lazy-compile": "give --compile first",
    "--hf-overrides": "config.json is followed as it is; a copy of the folder may have another",
    "--download-dir": "is HF_HOME in the environment, where files of the hub are kept",
}
"""Flag, and what is said of it."""


def refuse_absent_flags(arguments: Sequence[str]) -> None:
    """Raises ParameterError for the first of ABSENT among a command's arguments."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        name = flag.replace("_", "-")
        if name in ABSENT:
            raise ParameterError(flag, ABSENT[name])
