"""A form of each kind in which weights lie in checkpoints: its `quantization_config`, and what writes it."""

from typing import Any

from tests.quantization.checkpoints import Writer
from tests.quantization.writers import fp8

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}

FORMS: dict[str, tuple[dict[str, Any], Writer]] = {
    "fp8-blocks": (BLOCKS, fp8.by_blocks),
    "fp8-matrix": (STATIC, fp8.by_matrix),
    "fp8-rows": (STATIC, fp8.by_row),
}
