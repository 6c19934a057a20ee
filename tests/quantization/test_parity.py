"""What compressed-tensors itself packs is read as what it unpacks."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.quantization.checkpoints import LLAMA, Writer, assert_same_values, made
from tests.quantization.forms import config_of_groups, weights
from tests.quantization.writers import e2m1

pytestmark = pytest.mark.parity

CASES = {
    "w4a16": ("pack-quantized", weights(4, "group", group_size=32)),
    "w4a16-zeros": ("pack-quantized", weights(4, "group", group_size=32, symmetric=False)),
    "w4a16-rows-zeros": ("pack-quantized", weights(4, "channel", symmetric=False)),
    "w8a16": ("pack-quantized", weights(8, "group", group_size=32, symmetric=False)),
    "w8": ("int-quantized", weights(8, "channel")),
    "fp8": ("float-quantized", weights(8, "channel", type="float")),
    "mxfp4": ("mxfp4-pack-quantized", weights(4, "group", type="float", group_size=32)),
    "nvfp4": ("nvfp4-pack-quantized", weights(4, "tensor_group", type="float", group_size=16)),
}


def packed_by_the_tool(
    form: str, args: dict[str, Any], rng: np.random.Generator, module: str, rows: int, depth: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    torch = pytest.importorskip("torch")
    tool = pytest.importorskip("compressed_tensors")
    scheme = tool.quantization.QuantizationScheme(
        targets=["Linear"], weights=tool.quantization.QuantizationArgs(**args), format=form
    )
    compressor = tool.compressors.BaseCompressor.get_value_from_registry(form)
    groups = depth // args["group_size"] if args["group_size"] else 1
    state = {
        "weight": torch.tensor(rng.standard_normal((rows, depth)), dtype=torch.float32),
        "weight_scale": torch.tensor(rng.uniform(0.1, 0.4, (rows, groups)), dtype=torch.float32),
    }
    if form == "mxfp4-pack-quantized":
        state["weight_scale"] = torch.exp2(torch.tensor(rng.integers(-4, 2, (rows, groups)), dtype=torch.float32))
    if form == "nvfp4-pack-quantized":
        state["weight_scale"] = torch.tensor(rng.integers(1, 16, (rows, groups)), dtype=torch.float32)
        state["weight_global_scale"] = torch.tensor([4.0])  # values are exact in the tool's bfloat16
    if not args["symmetric"]:
        state["weight_zero_point"] = torch.tensor(rng.integers(-8, 8, (rows, groups)), dtype=torch.int8)
    written = compressor.compress(state, scheme)
    values = compressor.decompress(dict(written), scheme)["weight"].float().numpy()
    return {f"{module}.{name}": _array(tensor) for name, tensor in written.items()}, values


def _array(tensor: Any) -> np.ndarray:
    import ml_dtypes
    import torch

    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return tensor.numpy()


@pytest.mark.parametrize("name", CASES)
def test_what_the_tool_packs_is_what_is_read(tmp_path: Path, name: str) -> None:
    form, args = CASES[name]
    writer: Writer = partial(packed_by_the_tool, form, args)
    checkpoint = made(LLAMA, config_of_groups(form, args), writer)
    assert_same_values(checkpoint.write(tmp_path / "q"), checkpoint.write_plain(tmp_path / "p"))


def test_gpt_oss_experts_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors, values = e2m1.gpt_oss(np.random.default_rng(0), "w", (3, 64, 96))
    blocks, scales = (torch.tensor(tensors[f"w_{kind}"]) for kind in ("blocks", "scales"))
    found = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).numpy()
    np.testing.assert_array_equal(found.transpose(0, 2, 1), values)
