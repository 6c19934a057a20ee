"""`jaxinfer inspect` and `jaxinfer models`, against what files hold and what is worked out by hand."""

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  from then on NumPy knows short floats
import numpy as np
import pytest
from safetensors import safe_open

from jaxinfer.cli import inspect, main, models
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.registry import ARCHITECTURES
from tests.material import material
from tests.models.goldens import FAMILIES, GOLDENS


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert inspect.run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.few(22)
@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.endswith("_vision") and name != "llava"])
def test_parameters_are_those_of_the_file(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    with safe_open(GOLDENS / family / "model.safetensors", framework="numpy") as file:
        names = list(file.keys())
        sizes = {name: math.prod(file.get_slice(name).get_shape()) for name in names}
    held, kept_wide = sum(sizes.values()), sum(n for name, n in sizes.items() if name.endswith("correction_bias"))
    found = report(capsys, str(GOLDENS / family))
    assert found["parameters"] == held
    assert found["weight_bytes"]["float32"] == 4 * held
    assert found["weight_bytes"]["bfloat16"] == 2 * (held + kept_wide)


def test_groups_and_blocks_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, str(GOLDENS / "gemma3"), "--dtype", "bfloat16", "--block-size", "32")
    token = 2 * 2 * 16 * 2  # keys and values of two heads of 16, two bytes each
    kept = {"dtype": "bfloat16", "padding_bytes": 0}
    assert found["kv_groups"] == [
        {"layers": 2, "window": 7, "token_bytes": 2 * token, **kept},
        {"layers": 1, "window": None, "token_bytes": token, **kept},
    ]
    assert found["blocks"] == [4096, 4096]
    assert inspect.run([str(GOLDENS / "gemma3")]) == 0
    assert "KV group 0            512 B a token in float32; 2 layers keep the last 7 tokens" in capsys.readouterr().out


def test_padding_and_memory_of_a_tpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Heads of 16 share a row of 128 lanes, a key and its value; 1 MiB is taken in blocks of 64 KiB or so."""
    monkeypatch.setattr("jaxinfer.build.inspection.platform_name", lambda: "tpu")
    monkeypatch.setattr("jaxinfer.build.inspection.usable_memory", lambda share: 2**20)
    path = str(GOLDENS / "qwen3_moe")
    found = report(capsys, path, "--dtype", "bfloat16", "--block-size", "128")
    token = 2 * 2 * 128 * 2  # two layers, two heads
    sizes = {"token_bytes": token, "padding_bytes": token * 3 // 4}
    assert found["kv_groups"] == [{"layers": 2, "window": None, "dtype": "bfloat16", **sizes}]
    assert found["blocks"] == [(2**20 - found["weight_bytes"]["bfloat16"]) // (128 * token)]
    monkeypatch.setattr("jaxinfer.build.inspection.usable_memory", lambda share: 1000)
    assert inspect.run([path]) == 0
    assert "none: the weights alone take more than 1000 B of a tpu" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "kept"), [("bf16", "bfloat16"), ("fp8", "float8_e4m3fn"), ("int8", "int8")])
def test_keys_and_values_in_few_bits(name: str, kept: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain, found = (report(capsys, str(GOLDENS / "gemma3"), *flags) for flags in ([], ["--kv-cache-dtype", name]))
    assert found["parameters"] == plain["parameters"]
    share = 4 // np.dtype(kept).itemsize
    for before, after in zip(plain["kv_groups"], found["kv_groups"], strict=True):
        assert after == {**before, "dtype": kept, "token_bytes": before["token_bytes"] // share}


def test_bytes_of_quantised_weights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Llama, tiny: two layers of 2 * 32 * 64 + 2 * 32 * 32 in attention and 3 * 32 * 48 in the MLP, five norms of 32,
    and an embedding of 96 rows; a scale of four bytes a row, or for 32 values. 48 inputs are no multiple of 32."""
    monkeypatch.setattr("jaxinfer.build.inspection.platform_name", lambda: "gpu")
    monkeypatch.setattr("jaxinfer.build.inspection.usable_memory", lambda share: 2**20)
    path = str(GOLDENS / "llama3")
    norms, table = 5 * 32 * 2, 96 * (32 + 4)
    rows, inputs = (128, 32, 96, 32), (32, 64, 32, 48)  # of qkv, out, gate_up, down
    int8 = 2 * sum(n * (k + 4) for n, k in zip(rows, inputs, strict=True))
    int4 = 2 * sum(n * (k // 2 + k // 32 * 4) for n, k in zip(rows[:3], inputs[:3], strict=True)) + 2 * 32 * (48 + 4)
    found = report(capsys, path, "--dtype", "bfloat16", "--block-size", "64", "--quantization", "int4")
    assert found["weight_bytes"]["int8"] == norms + table + int8
    assert found["weight_bytes"]["int4"] == norms + table + int4
    token = 2 * 2 * 2 * 16 * 2  # two layers, two heads of 16
    assert found["blocks"] == [(2**20 - norms - table - int4) // (64 * token)]


LLAMA_8B = {
    **{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256},
    **{"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": False},
}


@pytest.mark.few(1)
@pytest.mark.parametrize(("quantization", "sequences"), [("none", 0), ("int8", 27), ("fp8", 27), ("int4", 36)])
def test_sequences_that_a_device_holds_which_is_not_here(
    quantization: str, sequences: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Llama-3.1-8B beside sequences of 2,048 tokens on a v5e: 16 GiB, of which nine tenths are taken."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    device = ("--platform", "tpu", "--device-memory", "16", "--quantization", quantization)
    found = report(capsys, str(path), *device, "--max-model-len", "2048")
    token = 32 * 2 * 8 * 128 * 2
    weights = found["weight_bytes"]["bfloat16" if quantization == "none" else quantization]
    assert (found["kv_groups"][0]["token_bytes"], found["block_size"]) == (token, 128)
    room = max(int(0.9 * 2**34) - weights, 0)
    assert 0 <= room - sum(found["blocks"]) * 128 * token <= room // 64
    assert found["sequences"] == sequences
    assert inspect.run([str(path), *device, "--max-model-len", "2048"]) == 0
    assert f"sequences that fit    {sequences} of 2,048 tokens each" in capsys.readouterr().out


def test_sequences_beside_a_window(capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma 3, tiny: two layers with a window of 7 tokens, which may lie in two blocks of 16, and one without."""
    path, asked = str(GOLDENS / "gemma3"), ("--platform", "gpu", "--block-size", "16", "--max-model-len", "64")
    found = report(capsys, path, *asked, "--device-memory", "0.01", "--gpu-memory-utilization", "0.5")
    windowed, full = (16 * group["token_bytes"] for group in found["kv_groups"])
    ([each, other], room) = found["blocks"], int(0.5 * 0.01 * 2**30) - found["weight_bytes"]["bfloat16"]
    assert each == other <= room // (windowed + full)
    assert found["sequences"] == (each - 1) * (windowed + full) // (2 * windowed + 4 * full)


def test_one_device_of_a_mesh(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """gpt-oss, tiny: what is split over two devices is half of it there, and whole experts take as much as halves."""
    path, device = str(GOLDENS / "gpt_oss"), ("--platform", "gpu", "--device-memory", "0.01")
    one, two = report(capsys, path, *device), report(capsys, path, *device, "--mesh", "tp2")
    assert two["mesh"]["axes"] == {"data": 1, "stage": 1, "expert": 1, "tensor": 2}
    assert [group["token_bytes"] * 2 for group in two["kv_groups"]] == [g["token_bytes"] for g in one["kv_groups"]]
    assert one["weight_bytes"]["bfloat16"] / 2 < two["weight_bytes"]["bfloat16"] < one["weight_bytes"]["bfloat16"]
    assert two["parameters"] == one["parameters"]
    assert two["blocks"][0] > 2 * one["blocks"][0]
    file = tmp_path / "experts.yaml"
    file.write_text("axes: {expert: 2}\nrules: {expert: expert}\n")
    three = report(capsys, path, *device, "--mesh", str(file))
    assert three["kv_groups"] == one["kv_groups"]
    assert inspect.run([path, "--mesh", "tp2"]) == 0
    printed = capsys.readouterr().out
    assert "mesh                  tensor=2: 2 devices; what follows is of one\n" in printed
    split = "vocab over tensor, kv_heads over tensor, mlp over tensor, expert_mlp over tensor"
    assert f"split                 {split}\n" in printed
    file.write_text("axes: {data: 16}\ntopology: h200:2x1x8\n")
    assert inspect.run([path, "--mesh", str(file)]) == 0
    assert "not served" not in capsys.readouterr().out
    file.write_text("axes: {data: 2}\nrules: {mlp: data}\n")
    assert inspect.run([path, "--mesh", str(file)]) == 0
    assert "not served            rules.mlp: data splits requests" in capsys.readouterr().out
    assert main(["inspect", path, "--mesh", "tp4"]) == 2
    assert "--mesh: expert_mlp, 6, cannot be split over tensor=4" in capsys.readouterr().err


def test_layers_of_stages(capsys: pytest.CaptureFixture[str]) -> None:
    """The fullest stage counts: that with all layers but one."""
    one, two, uneven = (
        report(capsys, "demo", *asked)
        for asked in ((), ("--mesh", "pp2"), ("--mesh", "pp2", "--pipeline-layers", "0-4,5"))
    )
    whole, even, most = (each["weight_bytes"]["float32"] for each in (one, two, uneven))
    assert whole / 2 <= even < most < whole
    assert one["stages"] == []
    assert [(stage["first"], stage["last"]) for stage in uneven["stages"]] == [(0, 4), (5, 5)]
    assert max(stage["weight_bytes"] for stage in uneven["stages"]) == most
    assert inspect.run(["demo", "--mesh", "pp2", "--pipeline-layers", "0-4,5"]) == 0
    printed = capsys.readouterr().out
    assert (
        "stages                layers 0-4 10.09 MiB, 5 3.52 MiB; what follows is of the one that holds most" in printed
    )
    assert "split  " not in printed
    assert main(["inspect", "demo", "--mesh", "pp2", "--pipeline-layers", "0-5"]) == 2
    assert "--pipeline-layers: 0-5: 1 range, and there are 2 stages" in capsys.readouterr().err
    assert main(["inspect", "demo", "--pipeline-layers", "0-5"]) == 2
    assert "the mesh (one device) has no stages; give one that has" in capsys.readouterr().err


@pytest.mark.long
def test_a_cpus_blocks_lie_on_all_its_devices(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eighth of 16 GiB for all: split blocks are as many, over stages too, replicated ones half as many."""
    monkeypatch.setattr("jaxinfer.build.inspection.machine_memory", lambda: 16 << 30)
    big = ("--platform", "cpu", "--block-size", "16", "--dtype", "float32")
    model = str(material("configs", "gpt-oss-20b.shapes.json"))
    copied = tmp_path / "copied.yaml"
    copied.write_text("axes: {expert: 2}\n")
    meshes = ("single", "tp2", "pp2", str(copied))
    one, two, stages, other = (report(capsys, model, *big, "--mesh", mesh)["blocks"] for mesh in meshes)
    assert one == two == stages
    assert one[0] < 4096
    assert other[0] <= one[0] // 2 + 64


def test_stages_of_a_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the fullest: the embedding and four of the demo's six layers; the head with two is read as fast."""
    one, two = report(capsys, "demo"), report(capsys, "demo", "--mesh", "pp2")
    table, every = 2560 * 192 * 4, one["weight_bytes"]["float32"]
    assert two["weight_bytes"]["float32"] == pytest.approx(table + (every - table) * 4 / 6, rel=1e-3)
    ((whole,), (half,)) = one["kv_groups"], two["kv_groups"]
    assert half["token_bytes"] * 6 == whole["token_bytes"] * 4
    assert two["parameters"] == one["parameters"]
    assert two["mesh"]["refused"] is None


def test_active_parameters_of_experts(capsys: pytest.CaptureFixture[str]) -> None:
    """Mixtral, tiny: two of four experts of three matrices of 32 x 48 in each of two layers, and one row of the
    embedding of 96."""
    found = report(capsys, str(GOLDENS / "mixtral"))
    idle = 2 * 2 * 3 * 32 * 48 + 95 * 32
    assert found["active_parameters"] == found["parameters"] - idle


def test_a_config_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, str(material("configs", "gpt-oss-20b.shapes.json")))
    assert found["architecture"] == "GptOssForCausalLM"
    assert f"{found['parameters'] / 1e9:.1f} B" == "20.9 B"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inspect", "demo", "--platform", "tpu"], "device_memory: must be given for a tpu, which is not here"),
        (["inspect", "demo", "--max-model-len", "64"], "device_memory: must be given to count sequences on a CPU"),
        (["inspect", "demo", "--device-memory", "0"], "--device-memory: must be above 0, not 0"),
        (["inspect", str(Path(__file__))], "must be a folder, a hub id or a config.json"),
        (["inspect", "demo", "--architecture", "Nobody"], "'Nobody' is not supported; `jaxinfer models` lists"),
        (["inspect", "demo", "--architecture", "Llama"], "'Llama' is not supported; did you mean LlamaForCausalLM?"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_models_lists_every_architecture(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.run(["--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["architectures"]
    names = [row["architecture"] for row in listed]
    assert set(ARCHITECTURES) <= set(names)
    assert len(set(names)) == len(names)
    assert all(row["checked_against"] for row in listed)
    assert models.run([]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("InternLM2ForCausalLM ") for line in printed)
    assert printed[2].split() == ["architecture", "checked", "against", "note"]


def test_a_checkpoint_that_is_quantised_already(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is held in its own way, and in no other."""
    config = json.loads((GOLDENS / "llama3" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = report(capsys, str(tmp_path / "config.json"))
    plain = report(capsys, str(GOLDENS / "llama3" / "config.json"))
    assert found["parameters"] == plain["parameters"]
    [(form, size)] = found["weight_bytes"].items()
    assert form == "fp8"
    assert plain["weight_bytes"]["fp8"] < size < plain["weight_bytes"]["float32"]
    with pytest.raises(ParameterError, match="quantization: int8: the checkpoint is quantised already, in fp8"):
        inspect.run([str(tmp_path / "config.json"), "--quantization", "int8"])


def test_a_scheme_that_shards_do_not_allow_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo model's MLP has 18 groups of 32, which four devices cannot share."""
    found = report(capsys, "demo", "--mesh", "data2-tp4")["weight_bytes"]
    assert "int4" not in found
    assert {"float32", "int8"} <= found.keys()
    assert "int4" in report(capsys, "demo", "--mesh", "tp2")["weight_bytes"]
