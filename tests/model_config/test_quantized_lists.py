"""Lists of modules in quantisation configs mean what their writers mean, and what auto-round adds is known."""

import re
from typing import Any

import pytest

from jaxinfer.checkpoint.formats.declared import Declared
from jaxinfer.checkpoint.formats.registry import read_quantization
from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import ModelError

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
NAMES = ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.gate", "mlp.experts.1.down_proj")


def declared(quantization: dict[str, Any]) -> Declared:
    found = read_quantization(ConfigReader({"quantization_config": quantization}))
    assert found is not None
    return found


def plain(found: Declared) -> set[str]:
    """Modules of layers 1 and 11 that are as in a plain checkpoint."""
    names = [f"layers.{layer}.{name}" for layer in (1, 11) for name in NAMES]
    return {name for name in names if found.of_matrix(name) is None}


@pytest.mark.parametrize("listed", [["self_attn"], ["layers.1."], ["down_proj", "q_proj"], ["attn.q"], ["x"], [], [""]])
def test_awq_leaves_out_names_that_contain_an_entry(listed: list[str]) -> None:
    """AutoAWQ's rule: `any(entry in name for entry in modules_to_not_convert)`."""
    entries = [entry for entry in listed if entry]
    names = [f"model.layers.{layer}.{name}" for layer in (1, 11) for name in NAMES]
    wanted = {name.removeprefix("model.") for name in names if any(entry in name for entry in entries)}
    assert plain(declared({**AWQ, "modules_to_not_convert": listed})) == wanted


RULES = [
    {r"-:.*down": {}, r".*mlp.*": {"bits": 8}},
    {r".*mlp.*": {"bits": 8}, r"-:.*down": {}},
    {r"+:.*experts.*": {"group_size": 32}, r"-:.*mlp\.(?:gate|experts).*": {}, r".*up_proj": {"bits": 8}},
    {r"-:.*layers\.1\..*": {}, r".*layers\.1.*": {"bits": 8}},
]


@pytest.mark.parametrize("rules", RULES)
def test_the_first_rule_of_gptq_that_matches_decides(rules: dict[str, dict[str, int]]) -> None:
    found = declared({**GPTQ, "dynamic": rules})
    for layer in (1, 11):
        for name in NAMES:
            module = f"layers.{layer}.{name}"
            first = next((rule for rule in rules if re.match(re.sub(r"^[-+]:", "", rule), f"model.{module}")), "")
            form = found.of_matrix(module)
            if first.startswith("-:"):
                assert form is None, module
            else:
                wanted = {"bits": 4, "group_size": 128, **rules.get(first, {})}
                assert (form.bits, form.group) == (wanted["bits"], wanted["group_size"]), module  # type: ignore[union-attr]


BY_AUTO_ROUND = {
    **{"data_type": "int", "autoround_version": "0.5.1", "provider": "auto-round", "iters": 200, "nsamples": 128},
    **{
        "seqlen": 2048,
        "batch_size": 8,
        "lr": 0.005,
        "minmax_lr": 0.005,
        "low_gpu_mem_usage": True,
        "scale_dtype": "fp16",
    },
    **{"enable_quanted_input": True, "enable_minmax_tuning": True, "gradient_accumulate_steps": 1, "act_bits": 16},
    **{"block_name_to_quantize": "model.layers", "enable_norm_bias_tuning": False, "super_bits": None},
}


@pytest.mark.parametrize("base", [AWQ, GPTQ, {**AWQ, "zero_point": False, "sym": True}])
def test_what_auto_round_adds_changes_nothing(base: dict[str, Any]) -> None:
    asked = {**base, "zero_point": True} if "zero_point" in base else base
    assert declared({**base, **BY_AUTO_ROUND}).forms == declared(asked).forms


@pytest.mark.parametrize("base", [AWQ, GPTQ])
def test_auto_rounds_extra_config_leaves_modules_out(base: dict[str, Any]) -> None:
    extra = {
        "model.layers.1.mlp.down_proj": {"bits": 16, "data_type": "float"},
        r".*mlp\.gate$": {"bits": 16},
        "model.layers.11.mlp.up_proj": {"bits": 4, "group_size": 128},
    }
    found = declared({**base, **BY_AUTO_ROUND, "extra_config": extra})
    assert plain(found) == {"layers.1.mlp.down_proj", "layers.1.mlp.gate", "layers.11.mlp.gate"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_type": "mx_fp"}, "data_type 'mx_fp' is not supported; only 'int' is"),
        ({"act_bits": 8}, "act_bits 8 is not supported; only weights may be quantised"),
        ({"extra_config": {"model.layers.1.mlp": {"bits": 8}}}, "extra_config bits of model.layers.1.mlp is 8"),
        ({"super_bits": 6}, "super_bits is unknown, and might change"),
    ],
)
def test_what_auto_round_does_otherwise_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        declared({**GPTQ, **BY_AUTO_ROUND, **change})


@pytest.mark.parametrize("nested", [False, True])
def test_modelopt_is_known_by_its_producer(nested: bool) -> None:
    producer = {"producer": {"name": "modelopt", "version": "0.33.1"}}
    said = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    quantization = {**producer, "quantization": said} if nested else {**producer, **said}
    assert declared(quantization) == declared({**quantization, "quant_method": "modelopt"})
    with pytest.raises(ModelError, match="quant_method 'else' is not supported"):
        declared({**quantization, "producer": {"name": "else"}})
