"""Groups of flags in a command's help: first those that people use most."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxinfer.cli.help_text import flag_texts, flowing_doc, told_fields

COMMON = {
    "serve": (
        *("host", "port", "api_key", "served_model_name", "max_model_len", "dtype", "quantization", "device"),
        *("gpu_memory_utilization", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "mesh"),
        *("tensor_parallel_size", "speculative_config", "tokenizer", "chat_template", "tool_call_parser"),
        *("reasoning_parser", "log_level"),
    )
}
"""Names of fields, by command, in the order of the help."""


def help_groups(groups: dict[str, Any], common: Sequence[str]) -> dict[str, Any]:
    """Return groups to be shown in place of `groups`, which are frozen dataclasses of settings by name: the `common`
    fields are a group of their own, which comes first, and the others stay where they are."""
    owners = {field.name: group for group in groups.values() for field in dataclasses.fields(group)}
    fields = [field for name in common for field in told_fields(owners[name], [name])]
    texts = {name: flag_texts(type(owners[name]))[name] for name in common}
    shown = {"common": _shown(fields, flowing_doc("The flags that people use most; all others follow.", texts))}
    for name, group in groups.items():
        own = [field.name for field in dataclasses.fields(group) if field.name not in common]
        doc = flowing_doc(type(group).__doc__ or "", flag_texts(type(group)))
        shown[name] = _shown(told_fields(group, own), doc)
    return shown


def _shown(fields: list[Any], doc: str) -> Any:
    return dataclasses.make_dataclass("Shown", fields, namespace={"__doc__": doc}, frozen=True)()
