"""The commands as a user calls them: in a process of their own."""

import dataclasses
import functools
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.request import Request, urlopen

import openai
import pytest

from jaxinfer.cli.absent_flags import ABSENT
from jaxinfer.cli.help_groups import COMMON
from jaxinfer.config import EngineConfig
from jaxinfer.sampling import SamplingParams
from jaxinfer.serving.config import ServerConfig
from jaxinfer.text import Tokenizer
from jaxinfer.version import __version__
from tests.cli.command_line import ENVIRONMENT, REAL, SIMULATED, Running, call, call_each, slow
from tests.llm.simulated import right_tokens
from tests.material import REPOSITORY
from tests.text.folders import byte_level_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


@pytest.mark.smoke
def test_version() -> None:
    done = call("--version")
    assert (done.returncode, done.stdout) == (0, f"jaxinfer {__version__}\n")


def test_help_lists_the_commands() -> None:
    done = call("--help")
    assert done.returncode == 0
    assert "serve" in done.stdout
    assert "generate" in done.stdout
    assert call().returncode == 2


FLAGS = [
    "--num-blocks", "--gpu-memory-utilization", "--kv-watermark", "--block-size", "--max-num-seqs",
    "--max-num-batched-tokens", "--max-scored", "--max-model-len", "--long-prefill-token-threshold", "--seed",
    "--no-enable-prefix-caching", "--no-enable-chunked-prefill", "--no-overlap", "--dtype", "--host", "--port",
    "--api-key", "--served-model-name", "--config",
]  # fmt: skip


@functools.cache
def help_of(command: str) -> str:
    """Return the help that a process prints."""
    return call(command, "--help").stdout


def test_flags_have_vllms_names() -> None:
    told = help_of("serve")
    for flag in FLAGS:
        assert re.search(f"{flag}\\b", told), flag


ERRORS: list[tuple[list[str], str]] = [
    (["fly"], "there is no command 'fly'"),
    (["serve", "--host", "0.0.0.0"], "--host: 0.0.0.0 can be reached by others; give --api-key"),
    (["serve", "--config", "absent.yaml"], "--config: cannot read absent.yaml"),
    (["serve", "--host", "no.such.invalid"], "--host: cannot resolve 'no.such.invalid'"),
    (["serve", "dmeo", "--port", "0"], "did you mean demo, the model in the package?"),
    (["generate", "--prompt", "a", "--temperature", "-1"], "--temperature: -1.0 is out of range"),
    (["generate", "--prompt", ""], "--prompt: is empty"),
    (["serve", "--max-num-seq", "3"], "--max-num-seq: there is no such flag; did you mean --max-num-seqs?"),
    (["serve", "--no-such-flag=3"], "--no-such-flag: there is no such flag\n"),
    (["generate", "--prompt", "Once", "upon", "a", "time"], "a: was not expected; a text with spaces needs quotes"),
    (["serve", "--block-size", "3"], "error: --block-size: 3 must be a power of two from 1 to 256"),
    (["serve", "--max_num_seqs=0"], "error: --max-num-seqs: 0 must be at least 1"),
    (["serve", "-q", "awq_marlin"], "; a checkpoint in this form needs no flag: its own quantization_config is"),
    (
        ["serve", "--quantization", "bitsandbytes"],
        "in this form are not read; use the unquantised checkpoint",
    ),
    (["inspect", "--quantization", "modelopt_fp4"], "--quantization: 'modelopt_fp4' is not one of none, int8"),
    (["generate", "--kv-cache-dtype", "fp8_e5m2"], "; give fp8, which is e4m3"),
    (["serve", "--dtype", "int3"], "--dtype: 'int3' is not one of auto, bfloat16, float16, float32"),
    (["serve", "--port"], "--port: needs a value"),
    (["serve", "--port", "abc"], "--port: 'abc' is not a whole number"),
    (["generate", "--temperature", "hot"], "--temperature: 'hot' is not a number"),
    (["generate", "--stop-token-ids", "a", "b"], "--stop-token-ids: 'a', 'b' is not a whole number"),
    (["env", "--jsn"], "--jsn: there is no such flag"),
    (["serve", "--pipeline-parallel-size", "0"], "--pipeline-parallel-size: 0 must be at least 1"),
    (["serve", "--mesh", "tp3"], "--mesh: 'tp3' is no mesh; give a file that ends in .yaml, or one of data2-tp4, "),
    (["serve", "--mesh", "v6e-16"], "--mesh: v6e:4x4 is 4 hosts, and this engine has 1"),
    (
        ["generate", "--prompt", "a", "-pp", "2", "--decode-steps", "4"],
        "--decode-steps: must be 1 in a pipeline of several stages",
    ),
    (["serve", "-tp", "4", "--mesh", "tp2"], "tensor_parallel_size: 4 contradicts mesh tp2, which has tensor=2"),
    (["serve", "--tensor-parallel-size", "0"], "--tensor-parallel-size: 0 must be at least 1"),
    (["serve", "demo", "--quantization=awq"], "--quantization"),
    (
        ["serve", "--engine-address", "127.0.0.1:1", "--decode-steps", "8"],
        "--decode-steps: is a setting of the engine at --engine-address: give it to `jaxinfer engine` there",
    ),
    (["serve", "--engine-address", "localhost"], "--engine-address: 'localhost' must be HOST:PORT or unix:PATH"),
    (
        ["serve", "--port", "0", "--compile-cache-dir", "/dev/null/x"],
        "cannot make /dev/null/x: Not a directory",
    ),
    (["generate", "--prompt", "a", "--compile-cache-dir="], "--compile-cache-dir: must not be empty"),
]


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[subprocess.CompletedProcess[str]]:
    """What the commands of ERRORS gave, each a process."""
    return call_each([arguments for arguments, _ in ERRORS], tmp_path_factory.mktemp("commands"))


@pytest.mark.parametrize("number", range(len(ERRORS)), ids=[" ".join(arguments) for arguments, _ in ERRORS])
def test_an_error_of_ours_is_one_line_and_status_2(number: int, errors: list[subprocess.CompletedProcess[str]]) -> None:
    done, said = errors[number], ERRORS[number][1]
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("jaxinfer: error: ")
    assert said in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["serve", "--block-size", "3"],
        ["generate", "--prompt", ""],
        ["inspect", "--quantization", "modelopt_fp4"],
        ["env", "--jsn"],
    ],
)
def test_an_error_of_a_command_that_nothing_was_imported_for(
    arguments: list[str], errors: list[subprocess.CompletedProcess[str]]
) -> None:
    alone, forked = call(*arguments), errors[[given for given, _ in ERRORS].index(arguments)]
    assert (alone.returncode, alone.stdout, alone.stderr) == (forked.returncode, forked.stdout, forked.stderr)


@pytest.mark.long
def test_an_engine_that_fails_as_nobody_thought_ends_the_server_with_its_reason(folder: Path) -> None:
    done = call("serve", str(folder), "--port", "0", program=slow("failing"))
    assert done.returncode == 1
    assert "OSError: the disk is on fire" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("the engine's process ended with status 1, before it was ready")
    assert "Fatal Python error" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "plan", "inspect"])
def test_lines_of_help_are_full(command: str) -> None:
    """A word stands on the next line only if it does not fit on this one."""
    lines = [
        line[1:79].rstrip() for line in call(command, "--help", COLUMNS="80").stdout.splitlines() if line[:1] == "│"
    ]
    told = [(line, after.split()) for line, after in itertools.pairwise(lines) if _goes_on(line, after)]
    assert len(told) > 5
    assert [line for line, words in told if len(line) + 1 + len(words[0]) <= 77] == []


def _goes_on(line: str, after: str) -> bool:
    """Return whether two lines are of one text."""
    begins = [len(each) - len(each.lstrip()) for each in (line, after)]
    return begins[1] > 1 and begins[0] == begins[1] and not after.lstrip().startswith("─")


@pytest.mark.parametrize("command", ["serve", "chat", "generate", "plan", "inspect", "convert"])
def test_help_tells_no_default_that_is_nothing(command: str) -> None:
    assert re.findall(r"\(default:\s+(?:None|'')?\)", help_of(command)) == []


def test_help_of_serve_begins_with_common_flags_and_has_every_flag_once() -> None:
    told = re.findall(
        r"^│ (?:--([a-z0-9-]+)|(\w+ options))", call("serve", "--help", COLUMNS="80").stdout.replace("╭─ ", "│ "), re.M
    )
    names = [group or flag.replace("-", "_") for flag, group in told]
    first = names.index("common options") + 1
    assert tuple(names[first : first + 20]) == COMMON["serve"]
    assert names[first + 20] == "server options"
    groups = [ServerConfig(), *vars(EngineConfig()).values()]
    fields = [field.name for group in groups if dataclasses.is_dataclass(group) for field in dataclasses.fields(group)]
    assert sorted(name for name in names if "options" not in name) == sorted(["config", *fields])


@pytest.mark.parametrize("command", ["serve", "plan", "inspect"])
def test_help_says_that_the_model_may_be_left_out(command: str) -> None:
    told = help_of(command)
    assert "[OPTIONS] [MODEL]" in told
    assert "`demo`" in told
    assert "{None}" not in told


def test_help_names_a_default_only_where_there_is_one() -> None:
    told = " ".join(call("serve", "--help", COLUMNS="400").stdout.split())
    assert "(default: 8000)" in told
    assert "by default 16 on CPU" in told
    assert not re.search(r"default: (None|\))", told)


@pytest.mark.few(2)
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", ["--help", "serve --help", "env"])
def test_help_may_be_read_in_part(arguments: str, unbuffered: str) -> None:
    line = f"{' '.join(REAL)} {arguments} | true"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, cwd=REPOSITORY,
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered}, check=False,
    )  # fmt: skip
    assert done.stderr == ""


@pytest.fixture
def running(folder: Path) -> Iterator[Running]:
    server = Running(SIMULATED, str(folder), "--max-num-seqs", "4")
    yield server
    server.process.kill()
    server.process.communicate()


def test_serve_answers_the_openai_package_and_ends_on_sigterm(running: Running, folder: Path) -> None:
    with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
        reply = client.completions.create(model=str(folder), prompt="hello", max_tokens=5)
        assert reply.usage is not None
        assert reply.usage.completion_tokens == 5
        stream = client.chat.completions.create(
            model=str(folder), messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
        )
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] == "length"
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0


OLMOS_CALLS = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# <function_calls> #}"
WARNING = "tool calls in OLMo 3's form are not taken apart yet"


@pytest.mark.long
@pytest.mark.parametrize(
    ("template", "flags", "warns"),
    [
        (OLMOS_CALLS, [], True),
        (OLMOS_CALLS, ["--tool-call-parser", "none"], False),
        ("{{ messages }}", [], False),
    ],
)
def test_serve_warns_once_of_forms_that_are_not_taken_apart(
    folder: Path, template: str, flags: list[str], warns: bool
) -> None:
    byte_level_folder(folder, chat_template=template)
    server = Running(SIMULATED, str(folder), "--api-workers", "2", "--served-model-name", "m", *flags)
    server.process.send_signal(signal.SIGTERM)
    told = server.process.communicate(timeout=60)[1]
    assert told.count(f"m: {WARNING}") == told.count("not taken apart") == warns, told


def test_a_port_in_use_is_told_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = call("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert re.search(r"error: --port: cannot listen on .*; choose another --port, or 0 for any free one", done.stderr)


def test_the_curl_line_that_serve_prints_works(running: Running) -> None:
    found = re.fullmatch(r"curl (\S+) -H '(\S+): (\S+)' -d '(.*)'", running.try_line)
    assert found is not None, running.try_line
    url, header, value, data = found.groups()
    with urlopen(Request(url, data.encode(), {header: value}), timeout=60) as response:
        assert json.load(response)["choices"][0]["message"]["role"] == "assistant"


def test_generate_streams_to_the_terminal(folder: Path) -> None:
    done = call("generate", str(folder), "--prompt", "hello", "--max-tokens", "6", program=SIMULATED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")
    assert len(done.stdout) > 1
    assert re.search(r"prompt: 1 tokens, \d+ ms, .* tokens/s · output: 6 tokens, \d+ ms, .* tokens/s\n$", done.stderr)


@pytest.mark.long
def test_generate_prepares_what_it_needs() -> None:
    done = call("generate", "--prompt", "Once upon a time", "--max-tokens", "3", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "preparing" not in done.stderr
    assert re.search(r"^prompt: 4 tokens, .* · not counted: 4 programs prepared on the way, .*\n$", done.stderr, re.M)


@pytest.mark.long
def test_programs_of_the_cache_are_told(tmp_path: Path) -> None:
    sizes = ["--max-num-seqs", "1", "--max-num-batched-tokens", "8", "--max-scored", "1", "--max-model-len", "32"]
    flags = [*sizes, "--compile", "first", "--compile-cache-dir", str(tmp_path), "--max-tokens", "1", "--prompt", "a"]
    told = [call("generate", *flags).stderr for _ in range(2)]
    # A slow machine tells how far it is in between.
    begun = r"^preparing (\d+) programs\n(?:\d+ of \1 programs\n)*\1 programs were compiled\n"
    found = re.search(begun, told[0], re.MULTILINE)
    assert found is not None, told[0]
    assert f"{found.group(1)} of {found.group(1)} programs came from the cache\n" in told[1]


def test_generate_shows_choices_and_log_probabilities(folder: Path) -> None:
    flags = ["--prompt", "hello world", "--max-tokens", "3", "--n", "2", "--logprobs", "2", "--prompt-logprobs", "0"]
    done = call("generate", str(folder), *flags, program=SIMULATED)
    assert done.returncode == 0, done.stderr
    assert "--- 2 of 2 ---" in done.stdout
    for title in ("prompt", "output 1", "output 2"):
        assert re.search(rf"^{title} *$", done.stdout, re.MULTILINE), done.stdout
    of_prompt, _, _ = done.stdout.partition("\noutput 1")
    assert of_prompt.count("│ 'hello'") == 1  # drawn tokens may be it, too


def test_flags_that_are_told_to_be_absent_are() -> None:
    told = help_of("serve") + help_of("chat")
    assert [flag for flag in ABSENT if re.search(rf"[ ,]{flag}[ ,]", told)] == []
    assert re.search(r"[ ,]--dtype[ ,]", told)


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(SamplingParams)])
def test_every_sampling_parameter_is_a_flag(name: str) -> None:
    flag = {"structured_outputs": "json_schema", "bad_token_ids": "bad_words"}.get(name, name)
    assert f"--{flag.replace('_', '-')}" in help_of("generate")


def test_a_seed_is_the_one_of_a_request(folder: Path) -> None:
    flags = ["--prompt", "hello", "--max-tokens", "6", "--temperature", "1", "--seed", "7"]
    done = call("generate", str(folder), *flags, program=SIMULATED)
    tokenizer = Tokenizer(folder)
    drawn = right_tokens(tokenizer.encode("hello"), 6, seed=7)
    assert done.stdout.removesuffix("\n") == tokenizer.decode(drawn)


def drawn_by_a_server(folder: Path, *flags: str) -> str:
    """What a server that was just started draws for a request without a seed."""
    running = Running(SIMULATED, str(folder), *flags)
    try:
        with openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
            reply = client.completions.create(model=str(folder), prompt=[1, 2], max_tokens=30, temperature=1)
            return reply.choices[0].text
    finally:
        running.process.kill()
        running.process.communicate()


@pytest.mark.long
def test_a_server_without_a_seed_samples_differently_after_a_restart(folder: Path) -> None:
    assert drawn_by_a_server(folder) != drawn_by_a_server(folder)
    assert drawn_by_a_server(folder, "--seed", "5") == drawn_by_a_server(folder, "--seed", "5")
    assert drawn_by_a_server(folder, "--seed", "6") != drawn_by_a_server(folder, "--seed", "5")


def test_a_text_that_does_not_fit_is_told_before_it_is_begun(folder: Path) -> None:
    done = call("generate", str(folder), "--prompt", "hello", "--max-tokens", "100", program=SIMULATED)
    assert done.returncode == 2
    assert "--max-tokens: 100" in done.stderr


def test_a_reader_that_leaves_is_no_failure(folder: Path) -> None:
    line = " ".join([*SIMULATED, "generate", str(folder), "--prompt", "hello", "--max-tokens", "60", "--ignore-eos"])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line} | true"], capture_output=True, text=True, cwd=REPOSITORY,
        env=ENVIRONMENT, check=False,
    )  # fmt: skip
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


def test_another_tokenizer(folder: Path, tmp_path: Path) -> None:
    other = byte_level_folder(tmp_path / "other", chat_template="{{ messages[0].content }}")
    done = call("generate", str(folder), "--tokenizer", str(other), "--prompt", "hi", program=SIMULATED)
    assert done.returncode == 0, done.stderr
    done = call("generate", str(folder), "--tokenizer", str(tmp_path), "--prompt", "hi", program=SIMULATED)
    assert done.returncode == 2
    assert "has no tokenizer.json" in done.stderr


@pytest.mark.long
def test_env_tells_versions_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ENVIRONMENT, "TPU_SKIP_MDS_QUERY", raising=False)  # of this process, whose jax set it
    done = call("env")
    assert done.returncode == 0, done.stderr
    assert "TPU_" not in done.stdout  # jax sets one when it is imported
    for said in (
        f"jax  +{version('jax')}",
        r"device 0 +cpu, .*memory: unknown",
        r"attention xla +usable",
        r"attention mosaic_tpu +in an interpreter",
        r"attention mosaic_gpu +mosaic_gpu does not run on cpu: xla or native does",
        "compile cache",
        "cores",
    ):
        assert re.search(said, done.stdout), done.stdout
    report = json.loads(call("env", "--json").stdout)
    assert report["versions"]["jax"] == version("jax")
    assert report["devices"]["platform"] == "cpu"


def test_env_tells_of_a_device_that_cannot_be_used() -> None:
    done = call("env", JAX_PLATFORMS="cuda,none")
    assert done.returncode == 0, done.stderr
    assert re.search(r"devices +RuntimeError: ", done.stdout), done.stdout
    assert "compile cache" in done.stdout


def test_env_keeps_secrets() -> None:
    done = call("env", JAXINFER_API_KEY="hush-hush")
    assert "JAXINFER_API_KEY" in done.stdout
    assert "hush-hush" not in done.stdout


def test_generate_without_a_prompt_reads_standard_input(folder: Path) -> None:
    done = call("generate", str(folder), program=SIMULATED)  # standard input is empty
    assert done.returncode == 2
    assert "prompt: is empty" in done.stderr


def test_nothing_before_the_engine_imports_jax() -> None:
    modules = "jaxinfer.cli.serve, jaxinfer.cli.generate, jaxinfer.llm, jaxinfer.server.app, jaxinfer.build"
    code = f"import sys, {modules}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, cwd=REPOSITORY, check=False).returncode == 0


def test_help_does_not_wait_for_the_imports_of_a_server() -> None:
    code = "import sys, jaxinfer.cli.serve; sys.exit('aiohttp' in sys.modules or 'grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, cwd=REPOSITORY, check=False).returncode == 0
