"""A family from a package of its own: the example in plugin_example, installed, over Mistral's golden renamed."""

import json
import sys
import tomllib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxinfer.errors import ModelError
from jaxinfer.model_config.registry import known_architectures
from jaxinfer.models.declared import read_declared
from jaxinfer.models.loaded import load_model
from tests.cli.command_line import ENVIRONMENT, call
from tests.models.goldens import GOLDENS
from tests.models.paged import ODD_CHUNKS, PagedModel, run_paged

EXAMPLE = Path(__file__).parent / "plugin_example"
GOLDEN = GOLDENS / "mistral"
NAMES = {
    "model.": "tern.",
    "lm_head": "tern_head",
    "embed_tokens": "tokens",
    "layers.": "blocks.",
    "input_layernorm": "norm_1",
    "post_attention_layernorm": "norm_2",
    "self_attn.o_proj": "mix.out",
    "mlp.gate_proj": "widen.gate",
    "mlp.up_proj": "widen.value",
    "mlp.down_proj": "widen.narrow",
    "tern.norm": "tern.last_norm",
}
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "width",
    "intermediate_size": "mlp_width",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_width",
    "num_hidden_layers": "depth",
    "max_position_embeddings": "context",
    "sliding_window": "local_span",
    "rms_norm_eps": "epsilon",
    "eos_token_id": "eos_token_id",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of packages with the example in it, as an installer leaves it: its module, and what it declares."""
    packages = tmp_path / "packages"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    declared = packages / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    declared.mkdir(parents=True)
    (declared / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in points.items())])
        for group, points in project["entry-points"].items()
    )
    (declared / "entry_points.txt").write_text("\n".join(groups))
    (packages / "tern_for_jaxinfer.py").write_text((EXAMPLE / "tern_for_jaxinfer.py").read_text())
    monkeypatch.syspath_prepend(packages)
    monkeypatch.delitem(sys.modules, "tern_for_jaxinfer", raising=False)
    return packages


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Mistral's golden as Tern's folders are."""
    folder = tmp_path / "tern"
    folder.mkdir()
    raw = json.loads((GOLDEN / "config.json").read_text())
    fields = {ours: raw[theirs] for theirs, ours in FIELDS.items()}
    local = list(range(raw["num_hidden_layers"]))
    tern = {**fields, "architectures": ["TernForCausalLM"], "local_layers": local, "dtype": raw["dtype"]}
    (folder / "config.json").write_text(json.dumps(tern))
    save_file(_renamed(load_file(GOLDEN / "model.safetensors"), len(local)), folder / "model.safetensors")
    return folder


def _renamed(tensors: dict[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    for i in range(layers):
        parts = [tensors.pop(f"model.layers.{i}.self_attn.{x}_proj.weight") for x in "qkv"]
        tensors[f"model.layers.{i}.mix.qkv.weight"] = np.concatenate(parts)
    return {_other_name(name): tensor for name, tensor in tensors.items()}


def _other_name(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_a_plugin_gives_the_logits_of_its_models(checkpoint: Path) -> None:
    config = read_declared(checkpoint).config
    assert [group.window for group in config.kv_groups] == [9]
    model = load_model(checkpoint, config, dtype=jnp.dtype("float32"))
    golden = np.load(GOLDEN / "golden.npz")
    for row in run_paged(PagedModel(model), golden["token_ids"], ODD_CHUNKS):
        np.testing.assert_allclose(row, golden["logits"], atol=1e-4)


def test_a_plugin_is_known_while_it_is_installed(
    checkpoint: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "TernForCausalLM" in known_architectures()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(installed)])
    assert "TernForCausalLM" not in known_architectures()
    with pytest.raises(ModelError, match="'TernForCausalLM' is not supported"):
        read_declared(checkpoint)


@pytest.mark.usefixtures("installed")
def test_a_plugin_refuses_fields_that_it_does_not_read(checkpoint: Path) -> None:
    raw = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps({**raw, "wing_scale": 3}))
    with pytest.raises(ModelError, match="wing_scale is unknown"):
        read_declared(checkpoint)


def test_the_command_lists_it(installed: Path) -> None:
    listed = call("models", PYTHONPATH=f"{installed}:{ENVIRONMENT['PYTHONPATH']}")
    (line,) = [line for line in listed.stdout.splitlines() if "Tern" in line]
    assert line.split("  ", 1)[0] == "TernForCausalLM"
    assert "Mistral's logits, under other names" in line
    assert line.endswith("from a plugin")


def test_one_that_cannot_be_loaded_is_named(checkpoint: Path, installed: Path) -> None:
    (installed / "tern_for_jaxinfer.py").write_text("import nothing_of_this_name\n")
    with pytest.raises(ModelError, match="its plugin tern_for_jaxinfer:TERN cannot be loaded: No module"):
        read_declared(checkpoint)
    listed = call("models", PYTHONPATH=f"{installed}:{ENVIRONMENT['PYTHONPATH']}")
    assert "from a plugin, which cannot be loaded" in listed.stdout
    assert "LlamaForCausalLM" in listed.stdout
