"""Flags of other engines: each has our meaning, or a hint that names our flag."""

import dataclasses
import re

import pytest

from jaxinfer.cli.absent_flags import ABSENT
from jaxinfer.cli.aliases import ALIASES, HINTS, MODEL_ALIASES, SAMPLING_ALIASES
from jaxinfer.cli.chat import ChatOptions
from jaxinfer.cli.generate import GenerateOptions
from jaxinfer.cli.sampling import SamplingFlags
from jaxinfer.cli.settings import parse_settings
from jaxinfer.cli.without_effect import WITHOUT_EFFECT
from jaxinfer.config import EngineConfig
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.serving.config import ServerConfig


def serve(*arguments: str):
    return parse_settings("serve", {"server": ServerConfig()}, arguments)[0]


def generate(*arguments: str):
    groups = {"generation": GenerateOptions(), "sampling": SamplingFlags()}
    return parse_settings("generate", groups, arguments)[1]


@pytest.mark.parametrize("flag", MODEL_ALIASES)
@pytest.mark.parametrize("form", ["{} some/model", "{}=some/model"])
def test_names_of_the_model(flag: str, form: str) -> None:
    assert serve("--port", "9000", *form.format(flag).split()).model == "some/model"


def test_the_model_is_given_once() -> None:
    with pytest.raises(ParameterError, match=r"more than once: a, b"):
        serve("--model", "a", "--model-id", "b")


@pytest.mark.parametrize(
    ("given", "group", "name", "value"),
    [
        ("--max-batch-size 7", "scheduler", "max_num_seqs", 7),
        ("--max_batch_size=7", "scheduler", "max_num_seqs", 7),
        ("--max-decode-batch 7", "scheduler", "max_num_seqs", 7),
        ("--max-seq-len 77", "load", "max_model_len", 77),
        ("--max-running-requests 7", "scheduler", "max_num_seqs", 7),
        ("--context-length 77", "load", "max_model_len", 77),
        ("--chunked-prefill-size 512", "scheduler", "max_num_batched_tokens", 512),
        ("--schedule-policy fcfs", "scheduler", "scheduling_policy", "fcfs"),
        ("--dist-init-addr 10.0.0.1:5000 --hosts-key k", "hosts", "coordinator", "10.0.0.1:5000"),
        ("--nnodes 2", "hosts", "num_hosts", 2),
        ("--node-rank 1", "hosts", "host_id", 1),
        ("--prefill-chunk-size 64", "scheduler", "long_prefill_token_threshold", 64),
        ("--memory-threshold 0.9", "cache", "kv_watermark", 0.1),
        ("--cuda-graphs", "runner", "cuda_graphs", "on"),
        ("--cuda-graphs off", "runner", "cuda_graphs", "off"),
        ("--cuda-graphs some/model", "runner", "cuda_graphs", "on"),
        ("--cuda-graphs --port 9000", "runner", "cuda_graphs", "on"),
        ("--max-num-seqs auto", "scheduler", "max_num_seqs", "auto"),
    ],
)
def test_aliases(given: str, group: str, name: str, value: object) -> None:
    assert getattr(getattr(serve(*given.split()), group), name) == value


def test_sampling_in_the_terminal() -> None:
    settings = generate("--sample-len", "5", "--repeat-penalty=1.5", "--prompt", "x")
    assert (settings.sampling.max_tokens, settings.sampling.repetition_penalty) == (5, 1.5)
    chat = parse_settings("chat", {"chat": ChatOptions(), "sampling": SamplingFlags()}, ["--thinking"])[1]
    assert chat.chat.thinking == "on"


@pytest.mark.parametrize(
    ("flag", "ours"),
    [
        ("--max-total-tokens", "--max-model-len"), ("--batching-mode", "--max-num-seqs"),
        ("--kv-cache-backend", "--attention-backend"), ("--cache-max-entries", "--prefix-cache-max-tokens"),
        ("--max-prefill-batch", "--max-num-partial-prefills"), ("--prefix-cache", "--no-enable-prefix-caching"),
        ("--max-prefill-tokens", "--max-num-batched-tokens"), ("--mem-fraction-static", "--gpu-memory-utilization"),
        ("--disable-radix-cache", "--no-enable-prefix-caching"), ("--disable-cuda-graph", "--cuda-graphs off"),
        ("--ep-size", "--enable-expert-parallel"),
        ("--sample-len", "max_tokens"), ("--repeat-penalty", "repetition_penalty"), ("--thinking", "enable_thinking"),
    ],
)  # fmt: skip
def test_hints_name_ours(flag: str, ours: str) -> None:
    with pytest.raises(ParameterError) as error:
        serve(flag, "1")
    assert error.value.param == flag
    assert ours in error.value.message


@pytest.mark.parametrize("value", ["0", "1e-9", "1.1", "nine"])
def test_a_threshold_out_of_range(value: str) -> None:
    with pytest.raises(ParameterError, match=r"--memory-threshold: .*at most 1"):
        serve("--memory-threshold", value)


def test_an_alias_without_a_value() -> None:
    with pytest.raises(ParameterError, match="--max-batch-size: needs a value"):
        serve("--max-batch-size")
    with pytest.raises(ParameterError, match="--max-batch-size: needs a value"):
        serve("--max-batch-size", "--port", "80")


@pytest.mark.long
def test_what_hints_and_aliases_name_exists() -> None:
    """Each flag of ours that they name is taken."""
    named = {flag for text in HINTS.values() for flag in re.findall(r"--[a-z][a-z-]+", text)}
    named |= {ALIASES[flag](flag, "0.5")[0] for flag in ALIASES}
    values = {"--attention-backend": "xla", "--quantization": "int8", "--scheduling-policy": "fcfs"}
    values |= {"--coordinator": "10.0.0.1:5000", "--gpu-memory-utilization": "0.5"}
    for flag in named - {"--no-enable-prefix-caching", "--enable-prefix-caching"}:
        serve(flag, values.get(flag, "0.5" if flag == "--kv-watermark" else "300"))
    assert not {*HINTS, *ALIASES, *SAMPLING_ALIASES, *MODEL_ALIASES} & named


COMMAND_LINES = {
    "some/model --enable-auto-tool-choice --tool-call-parser hermes": ["--enable-auto-tool-choice"],
    "some/model --tool-call-parser llama3_json --enforce-eager --port 9000": ["--enforce-eager"],
    "some/model --reasoning-parser deepseek_r1": [],
    "some/model --tensor-parallel-size 2 --distributed-executor-backend mp": ["--distributed-executor-backend"],
    "some/model --swap-space 4 --disable-log-requests --generation-config auto": [
        "--swap-space", "--disable-log-requests", "--generation-config",
    ],
    "--model some/model --dtype half --max-model-len 4096 --gpu-memory-utilization 0.9": [],
    "some/model --trust_remote_code --load-format=safetensors --tokenizer-mode auto": [
        "--trust_remote_code", "--load-format", "--tokenizer-mode",
    ],
    "some/model --async-scheduling --compilation-config {} --limit-mm-per-prompt {}": [
        "--async-scheduling", "--compilation-config", "--limit-mm-per-prompt",
    ],
    "some/model --served-model-name m --max-num-seqs 64 --enable-prefix-caching --uvicorn-log-level info": [
        "--uvicorn-log-level",
    ],
}  # fmt: skip
"""vLLM's command lines, and their flags that have no effect here."""


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_command_lines_of_vllm_start(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(*line.split()).model == "some/model"
    told = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^warning: (\S+) has no effect: .+", r"\1", each) for each in told] == COMMAND_LINES[line]


def test_values_under_other_names() -> None:
    assert serve("--dtype", "half").load.dtype == "float16"
    assert serve("--dtype=half").load.dtype == "float16"
    assert serve("--dtype", "bfloat16").load.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--load-format gguf", "--load-format: 'gguf' is not supported: safetensors are read; leave the flag out"),
        ("--generation-config vllm", "--generation-config: 'vllm' is not supported"),
        ("--swap-space", "--swap-space: needs a value"),
        ("--swap-space --port 1", "--swap-space: needs a value"),
        ("--hf-overrides {}", "--hf-overrides: config.json is followed as it is"),
        ("--dtype", "--dtype: needs a value"),
    ],
)
def test_flags_that_would_have_an_effect_are_refused(given: str, said: str) -> None:
    with pytest.raises(JaxinferError, match=re.escape(said)):
        serve("some/model", *given.split())


def test_what_has_no_effect_is_no_flag_of_ours() -> None:
    groups = [ServerConfig(), *(value for value in vars(EngineConfig()).values() if dataclasses.is_dataclass(value))]
    ours = [field.name for group in groups for field in dataclasses.fields(group)]
    assert not {f"--{name.replace('_', '-')}" for name in ours} & {*WITHOUT_EFFECT}
    assert not {*WITHOUT_EFFECT} & {*ABSENT, *HINTS, *ALIASES}
