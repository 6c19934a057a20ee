"""From `quantization_config` to Declared, by `quant_method`."""

from collections.abc import Callable

from jaxinfer.checkpoint.formats import awq, compressed_tensors, fp8, gptq, modelopt, mxfp4
from jaxinfer.checkpoint.formats.declared import Declared
from jaxinfer.checkpoint.formats.modules import MOST_STEPS
from jaxinfer.checkpoint.formats.refused import REFUSED
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted

_READERS: dict[str, Callable[[ConfigReader], Declared]] = {
    "fp8": fp8.read,
    "compressed-tensors": compressed_tensors.read,
    "awq": awq.read,
    "gptq": gptq.read,
    "mxfp4": mxfp4.read,
    "modelopt": modelopt.read,
    "modelopt_fp4": modelopt.read,
}
_IGNORED = frozenset({"quant_method", "_load_in_4bit", "_load_in_8bit"})
_KEYS = ("quantization_config", "compression_config")


def read_quantization(config: ConfigReader) -> Declared | None:
    """Read the description of quantised weights in a config.json; None if there is none.

    Raises ModelError, which names the field, for an unknown tool, for a key that is neither read nor ignored on
    purpose, and for patterns that might take long to match.
    """
    found = [key for key in _KEYS if key in config]
    if not found:
        return None
    if len(found) > 1:
        raise config.error(found[1], f"is there beside {found[0]}")
    inner = config.mapping(found[0])
    assert inner is not None
    if found[0] == "compression_config":
        inner.default("quant_method", "compressed-tensors")  # which alone calls it so
    declared = _READERS[_method(inner)](inner)
    inner.finish(_IGNORED)
    if declared.steps > MOST_STEPS:
        raise config.error(
            found[0],
            f"has patterns of modules that might take {declared.steps:,} steps to match with each name; at most "
            f"{MOST_STEPS:,} are allowed",
        )
    return declared


def _method(config: ConfigReader) -> str:
    method = config.get("quant_method", _producer(config))
    if isinstance(method, str) and method in _READERS:
        return method
    if isinstance(method, str) and method in REFUSED:
        raise config.error("quant_method", f"{method} is not supported; {REFUSED[method]}")
    known = ", ".join(sorted(_READERS))
    raise config.error("quant_method", f"{quoted(method)} is not supported; supported are {known}")


def _producer(config: ConfigReader) -> object:
    """Who wrote a file that names no method: NVIDIA's tool says only that."""
    producer = config.get("producer")
    return producer.get("name") if isinstance(producer, dict) else None
