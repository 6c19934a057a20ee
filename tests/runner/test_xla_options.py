"""Options of XLA: this JAX knows all of ours, the user's come first, and a wrong one is told by name."""

import json
import os
import subprocess
import sys

import jax
import pytest

from jaxinfer.config import EngineConfig, RunnerConfig
from jaxinfer.config_tree import with_values
from jaxinfer.errors import ParameterError
from jaxinfer.runner.platform.values import program_options
from jaxinfer.runner.platform.xla_options import CUDA_GRAPHS, PLATFORM_OPTIONS, compiler_options, described
from jaxinfer.runner.programs.compiled import Programs
from tests.runner import before_jax
from tests.runner.tiny import tiny_model, tiny_shapes

EVERY = {f"{key}: {o.name}": o for table in (PLATFORM_OPTIONS, CUDA_GRAPHS) for key in table for o in table[key]}
BUILT_IN = {key: option for key, option in EVERY.items() if not key.startswith("tpu")}


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


SET = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "TF_CPP_MIN_LOG_LEVEL")


def prepared(**environment: str) -> dict[str, object]:
    """What `prepare` leaves in a process of its own: whether jax is there, and what `SET` names."""
    kept = {name: value for name, value in os.environ.items() if name not in SET}
    command = [sys.executable, "-m", before_jax.__name__, "prepare", *SET]
    done = subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, check=True)
    return dict(zip(("jax", "share", "level"), json.loads(done.stdout), strict=True))


def test_a_process_is_prepared_before_jax_is_imported() -> None:
    assert prepared() == {"jax": False, "share": "0.5000", "level": "3"}


def test_an_engine_is_prepared_before_jax_is_imported() -> None:
    """JAX sets the level of XLA's log, where it is not set yet."""
    subprocess.run([sys.executable, "-m", before_jax.__name__, "build"], check=True)


def test_what_the_environment_sets_stays() -> None:
    assert prepared(**dict.fromkeys(SET, "0.25")) == {"jax": False, "share": "0.25", "level": "0.25"}


@pytest.mark.parametrize("option", BUILT_IN.values(), ids=BUILT_IN)
def test_this_jax_knows_every_option(option) -> None:
    """Every build of XLA knows the options of GPUs. Those of TPUs are libtpu's: scripts/check_programs.py uses them."""
    program = jax.jit(lambda: 0).lower()
    program.compile(compiler_options={option.name: option.value})
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        program.compile(compiler_options={option.name + "_not": option.value})


@pytest.mark.parametrize("option", EVERY.values(), ids=EVERY)
def test_every_option_has_a_reason(option) -> None:
    assert len(option.reason) > 20


def test_a_wrong_operation_of_cuda_graphs_would_be_seen() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="WHILES"):
        jax.jit(lambda: 0).lower().compile(compiler_options={"xla_gpu_enable_command_buffer": "FUSION,WHILES"})


def test_cuda_graphs_are_options_of_a_gpu_only() -> None:
    name = "xla_gpu_enable_command_buffer"
    assert compiler_options("gpu", RunnerConfig(cuda_graphs="off"))[name] == ""
    for asked in ("auto", "on"):
        assert "WHILE" in str(compiler_options("gpu", RunnerConfig(cuda_graphs=asked))[name]).split(",")
    for platform in ("cpu", "tpu"):
        for others in ("auto", "off"):
            assert name not in compiler_options(platform, RunnerConfig(cuda_graphs=others))
        with pytest.raises(ParameterError, match=f"needs an NVIDIA GPU; this engine runs on {platform}") as caught:
            compiler_options(platform, RunnerConfig(cuda_graphs="on"))
        assert caught.value.param == "cuda_graphs"


@pytest.mark.parametrize("variable", ["XLA_FLAGS", "LIBTPU_INIT_ARGS"])
def test_the_environment_stays(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"xla_disable_hlo_passes", "xla_gpu_enable_command_buffer", "xla_gpu_graph_min_graph_size"}
    assert compiler_options("gpu", RunnerConfig()).keys() == own
    monkeypatch.setenv(variable, "--xla_dump_to=x --xla_disable_hlo_passes= --xla_gpu_enable_command_buffer=FUSION")
    assert compiler_options("gpu", RunnerConfig()).keys() == {"xla_gpu_graph_min_graph_size"}
    assert len(compiler_options("gpu", RunnerConfig(cuda_graphs="on"))) == 2


def test_what_is_asked_for_comes_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_disable_hlo_passes=")
    asked = RunnerConfig(
        cuda_graphs="on",
        xla_flags="xla_disable_hlo_passes=fusion,cse --xla_gpu_enable_command_buffer= xla_a xla_b=False xla_c=true",
    )
    assert compiler_options("gpu", asked) == {
        "xla_disable_hlo_passes": "fusion,cse",
        "xla_gpu_enable_command_buffer": "",
        "xla_gpu_graph_min_graph_size": "1",
        "xla_a": True,
        "xla_b": False,
        "xla_c": True,
    }


@pytest.mark.parametrize("word", ["gpu_autotune_level=1", "-xla_a=1", "xla-a", "=", "xla_a =1", "1"])
def test_what_is_no_option_is_refused(word: str) -> None:
    with pytest.raises(ParameterError, match="must be an option of XLA") as caught:
        RunnerConfig(xla_flags=f"xla_gpu_autotune_level=2 {word}")
    assert caught.value.param == "xla_flags"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("xla_no_such_thing=1", "xla_no_such_thing"),
        ("xla_backend_optimization_level=much", "xla_backend_optimization_level.*much.*int32"),
    ],
)
def test_what_xla_does_not_know_is_refused(flags: str, told: str) -> None:
    with pytest.raises(ParameterError, match=told) as caught:
        program_options(RunnerConfig(xla_flags=flags))
    assert caught.value.param == "xla_flags"


def test_a_value_of_cuda_graphs_is_one_of_three() -> None:
    with pytest.raises(ParameterError, match="'maybe' is not one of auto, on, off") as caught:
        with_values(EngineConfig(), {"cuda-graphs": "maybe"})
    assert caught.value.param == "cuda_graphs"


@pytest.mark.long
def test_options_reach_every_program() -> None:
    model = tiny_model()
    shapes = tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=16)
    options = program_options(RunnerConfig(xla_flags="xla_backend_optimization_level=0"))
    assert options == {"xla_backend_optimization_level": "0"}
    programs = Programs(model, shapes, {"xla_no_such_thing": "1"})
    for name in programs.names:
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_thing"):
            programs.compile(name)


def test_options_are_told_in_one_order() -> None:
    assert described({"b": True, "a": "1"}) == described({"a": "1", "b": True}) == "a=1 b=True"
    assert described({}) == "XLA's defaults"
