"""`quant_method` modelopt: NVIDIA's fp8 and NVFP4."""

from jaxinfer.checkpoint.formats.declared import Declared, Group
from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.fp8 import Fp8
from jaxinfer.checkpoint.formats.modules import Modules, with_wildcards
from jaxinfer.checkpoint.formats.nvfp4 import Nvfp4
from jaxinfer.checkpoint.formats.settings.kv_codes import read_kv_codes
from jaxinfer.checkpoint.formats.settings.unused import KV_SCALES
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted

_FORMATS: dict[str, TensorFormat] = {"FP8": Fp8(None, "weight_scale"), "NVFP4": Nvfp4(compressed=False)}
_GROUP = 16


def read(config: ConfigReader) -> Declared:
    """Every matrix but those that the file leaves out. Activations stay as they are."""
    for name in ("producer", "config_groups", "targets"):
        config.get(name)
    inner = config.mapping("quantization") or config  # as hf_quant_config.json has it
    name = inner.get("quant_algo")
    if not isinstance(name, str) or name not in _FORMATS:
        raise inner.error("quant_algo", f"{quoted(name)} is not supported; {' and '.join(_FORMATS)} are")
    inner.only("group_size", _GROUP)
    codes = read_kv_codes(config)
    codes = codes if inner is config or read_kv_codes(inner) is not None else None
    for key in ("has_zero_point", "pre_quant_scale"):
        inner.get(key)
    texts = [(key, text) for key in ("exclude_modules", "ignore") for text in inner.texts(key)]
    left = Modules(
        parts=tuple(text for _, text in texts if "*" not in text),
        patterns=tuple(
            with_wildcards(text, f"{inner.where}: {key}", anywhere=False) for key, text in texts if "*" in text
        ),
    )
    if inner is not config:
        inner.finish(frozenset())
    return Declared(
        "modelopt",
        (Group(_FORMATS[name], all=True),),
        left,
        head=True,
        routers=True,
        unused=(".input_scale", *KV_SCALES),
        kv_codes=codes,
    )
