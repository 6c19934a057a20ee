"""`jaxinfer chat`: what a session says to the model, what its commands do, and what stands in the terminal."""

import dataclasses
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxinfer.cli.chat import Chat
from jaxinfer.cli.chat_commands import run_command
from jaxinfer.cli.chat_session import ChatSession
from jaxinfer.cli.sampling import SamplingFlags
from jaxinfer.engine.device.runner import LatePrograms
from jaxinfer.engine.types import FinishReason, ModelInfo
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from jaxinfer.text import ChoiceDelta, TextProcessor
from tests.cli.command_line import ENVIRONMENT, SIMULATED, SLOW_STEPS, call
from tests.material import REPOSITORY
from tests.server.conversation import CALL, TEMPLATE, WEATHER
from tests.text.folders import byte_level_folder


class ScriptedLLM:
    """Answers with `replies`, one after another, in pieces of three characters; keeps the prompts' texts."""

    def __init__(self, folder: Path):
        self.text = TextProcessor.from_folder(folder)
        self.info = ModelInfo("m", 400, 268, 4, 4, 100)
        self.engine = SimpleNamespace(runner=SimpleNamespace(late_programs=LatePrograms()))
        self.replies: list[str] = []
        self.prompts: list[str] = []
        self.params: list[SamplingParams] = []

    def stream(self, prompt: dict[str, Any], params: SamplingParams) -> Iterator[ChoiceDelta]:
        self.prompts.append(self.text.tokenizer.decode(prompt["prompt_token_ids"], skip_special_tokens=False))
        self.params.append(params)
        reply = self.replies.pop(0)
        for at in range(0, len(reply), 3):
            yield ChoiceDelta(0, reply[at : at + 3], [1], None, None, None, None)
        yield ChoiceDelta(0, "", [2], None, FinishReason.STOP, None, None)


@pytest.fixture
def llm(tmp_path: Path) -> Iterator[ScriptedLLM]:
    made = ScriptedLLM(byte_level_folder(tmp_path / "model", chat_template=TEMPLATE))
    yield made
    made.text.close()


def session_of(llm: ScriptedLLM, **options: Any) -> ChatSession:
    return ChatSession(llm, SamplingFlags(), **options)  # pyright: ignore[reportArgumentType]


def ask(session: ChatSession, text: str) -> str:
    session.say(text)
    return answer(session)


def answer(session: ChatSession) -> str:
    return "".join(part.content for part in session.answer(lambda: False))


def test_the_conversation_grows(llm: ScriptedLLM) -> None:
    session = session_of(llm, system="Be brief.")
    llm.replies = ["one", "two"]
    assert (ask(session, "a"), ask(session, "b")) == ("one", "two")
    assert llm.prompts[1] == (
        "<|system|>Be brief.<|end|><|user|>a<|end|><|assistant|>one<|end|><|user|>b<|end|><|assistant|>"
    )
    assert re.match(r"prompt: \d+ tokens, .* · output: 2 tokens", session.statistics)


def test_thinking_is_kept_apart_and_asked_for(llm: ScriptedLLM) -> None:
    session = session_of(llm, thinking="on")
    llm.replies = ["Hm.\n</think>\n\nYes."]
    session.say("a")
    parts = list(session.answer(lambda: False))
    assert "".join(part.reasoning for part in parts) == "Hm."
    assert "".join(part.content for part in parts) == "Yes."
    assert llm.prompts[0].endswith("<think>\n")
    assert session.messages[-1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


def test_a_tool_is_called_and_heard(llm: ScriptedLLM, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([WEATHER]))
    session = session_of(llm)
    assert run_command(session, f"/tools {file}").told == "tools: get_weather"
    llm.replies = [CALL, "21 degrees."]
    assert ask(session, "Weather?") == ""
    session.tool_said("21")
    assert answer(session) == "21 degrees."
    assert '<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}}</tool_call>' in llm.prompts[1]
    assert "<|tool|>21<|end|>" in llm.prompts[1]
    assert run_command(session, "/tools off").told == "no tools"


def test_an_answer_in_channels_is_taken_apart(llm: ScriptedLLM, tmp_path: Path) -> None:
    template = "{# <|channel|>final<|message|> #}{% for m in messages %}{{ m.content }}{% endfor %}"
    llm.text = TextProcessor.from_folder(byte_level_folder(tmp_path / "channels", chat_template=template))
    session = session_of(llm)
    llm.replies = ["<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."]
    assert ask(session, "a") == "Yes."
    assert session.messages[-1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert not llm.params[0].skip_special_tokens
    llm.text.close()


def test_chat_warns_of_forms_that_are_not_taken_apart(tmp_path: Path) -> None:
    template = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# <function_calls> #}"
    folder = byte_level_folder(tmp_path, chat_template=template)
    done = call("chat", str(folder), "--message", "hello", "--max-tokens", "4", program=SIMULATED)
    assert done.returncode == 0, done.stderr
    assert "warning: tool calls in OLMo 3's form are not taken apart yet" in done.stderr


@pytest.fixture
def calling(llm: ScriptedLLM, tmp_path: Path) -> ChatSession:
    """A session whose model calls get_weather and then answers."""
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([WEATHER]))
    session = session_of(llm)
    session.use_tools(file)
    llm.replies = [CALL, "21 degrees."]
    return session


def roles(session: ChatSession) -> list[str]:
    return [message["role"] for message in session.messages]


def type_lines(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """What is typed at prompts, one after another; then the input ends."""
    left = iter(lines)

    def read(prompt: str) -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read)


def test_a_command_is_not_what_a_tool_says(calling: ChatSession, monkeypatch: pytest.MonkeyPatch) -> None:
    type_lines(monkeypatch, "/stats", "/nothing", " /tmp/x")
    assert Chat(calling)._handle("Weather?")
    assert roles(calling) == ["user", "assistant", "tool", "assistant"]
    assert calling.messages[2]["content"] == " /tmp/x"
    assert calling.messages[3]["content"] == "21 degrees."


@pytest.mark.parametrize(
    ("line", "goes_on", "left"),
    [("/undo", True, []), ("/exit", False, ["user", "assistant"]), (EOFError, False, ["user", "assistant"]),
     (KeyboardInterrupt, True, ["user", "assistant"])],
)  # fmt: skip
def test_a_tool_that_says_nothing_gets_no_result(
    calling: ChatSession, monkeypatch: pytest.MonkeyPatch, line: str | type[BaseException], goes_on: bool,
    left: list[str],
) -> None:  # fmt: skip
    type_lines(monkeypatch, line)
    assert Chat(calling)._handle("Weather?") is goes_on
    assert roles(calling) == left


def test_retry_at_a_tools_prompt_asks_the_model_again(calling: ChatSession, monkeypatch: pytest.MonkeyPatch) -> None:
    type_lines(monkeypatch, "/retry")
    assert Chat(calling)._handle("Weather?")
    assert [message["content"] for message in calling.messages] == ["Weather?", "21 degrees."]


def test_one_message_without_a_terminal_ends_with_the_call(
    calling: ChatSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines(monkeypatch, "a line of something else")
    assert Chat(calling).once("Weather?") == 0
    told = capsys.readouterr()
    assert told.out == '→ get_weather({"city": "Bern"})\n\n'
    assert "get_weather was called and nobody says what it gives: the chat ends here" in told.err
    assert roles(calling) == ["user", "assistant"]


def test_settings_are_listed_with_what_holds(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')
    llm = ScriptedLLM(folder)
    session = session_of(llm)
    for line in ("/set top_k 5", "/set stop x y", "/set logit-bias 5=-100", "/set ignore_eos true"):
        run_command(session, line)
    listed = dict(line.split(": ") for line in run_command(session, "/set").told.replace("  ", "").splitlines())
    assert set(listed) == {field.name for field in dataclasses.fields(SamplingFlags)}
    assert (listed["temperature"], listed["top_k"], listed["top_p"]) == ("0.6", "5", "1.0")
    assert (listed["stop"], listed["logit_bias"], listed["ignore_eos"]) == ("x y", "5=-100", "true")
    assert (listed["seed"], listed["stop_token_ids"]) == ("not set", "not set")
    llm.text.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("text", ["[{", "{}", '[{"type": "function"}]'])
def test_tools_are_read_before_the_model_is_loaded(tmp_path: Path, text: str) -> None:
    folder = byte_level_folder(tmp_path / "model", chat_template=TEMPLATE)
    file = tmp_path / "bad.json"
    file.write_text(text)
    done = call("chat", str(folder), "--tools", str(file), program=SIMULATED)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxinfer: error: ")
    assert "tools" in done.stderr


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(llm: ScriptedLLM) -> None:
    session = session_of(llm)
    llm.replies = ["a long answer"]
    session.say("a")
    stops = iter([False, True])
    assert [part.content for part in session.answer(lambda: next(stops))] == ["a l", "ong"]
    assert session.messages[-1]["content"] == "a long"


def test_a_conversation_that_is_too_long_is_told_and_can_go_on(llm: ScriptedLLM) -> None:
    session = session_of(llm)
    session.say("x" * 500)
    with pytest.raises(ParameterError, match=r"messages: has .* /undo or /clear"):
        answer(session)
    assert len(session.messages) == 1


def test_commands(llm: ScriptedLLM, tmp_path: Path) -> None:
    session = session_of(llm)
    llm.replies = ["one", "two", "three"]
    ask(session, "a")
    assert run_command(session, "/retry").answer
    assert answer(session) == "two"
    assert llm.prompts[0] == llm.prompts[1]
    file = tmp_path / "talk.json"
    run_command(session, f"/save {file}")
    assert json.loads(file.read_text()) == session.messages
    run_command(session, "/system Be brief.")
    assert run_command(session, "/undo").told == "taken back: a"
    assert session.messages == [{"role": "system", "content": "Be brief."}]
    run_command(session, f"/load {file}")
    assert [message["content"] for message in session.messages] == ["a", "two"]
    run_command(session, "/clear")
    run_command(session, "/set temperature 0.5")
    run_command(session, "/set stop x y")
    run_command(session, "/set logit-bias 5=-100")
    ask(session, "b")
    assert (llm.params[2].temperature, llm.params[2].stop, llm.params[2].logit_bias) == (0.5, ("x", "y"), {5: -100.0})
    assert run_command(session, "/exit").leave
    assert run_command(session, "/quit").leave


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/nothing", "/nothing: is no command"), ("/think maybe", "maybe is not one of"), ("/save", "needs a file"),
        ("/load /no/such/file", "cannot read"), ("/tools /no/such/file", "cannot read"), ("/set heat 1", "heat"),
        ("/set temperature hot", "temperature"), ("/set temperature -1", "out of range"), ("/clear x", "no argument"),
        ("/set logit_bias x", "ID=BIAS"),
    ],
)  # fmt: skip
def test_a_command_that_cannot_be_done_changes_nothing(llm: ScriptedLLM, line: str, said: str) -> None:
    session = session_of(llm)
    before = session.sampling
    with pytest.raises(ParameterError, match=said):
        run_command(session, line)
    assert (session.messages, session.sampling, session.tools, session.thinking) == ([], before, [], "auto")


def test_lists_are_set_and_put_back(llm: ScriptedLLM) -> None:
    session = session_of(llm)
    for line in ("/set stop_token_ids 5 7", "/set stop 5 yes", "/set ignore_eos true"):
        run_command(session, line)
    for line in ("/set allowed_token_ids 5 9", "/set bad-words 5 no"):
        run_command(session, line)
    assert (session.sampling.stop_token_ids, session.sampling.stop) == ((5, 7), ("5", "yes"))
    assert (session.sampling.allowed_token_ids, session.sampling.bad_words) == ((5, 9), ("5", "no"))
    assert session.sampling.ignore_eos is True
    run_command(session, "/set stop")
    run_command(session, "/set stop_token_ids")
    assert (session.sampling.stop_token_ids, session.sampling.stop) == ((), ())


def test_what_the_template_cannot_do_is_refused(tmp_path: Path) -> None:
    plain = ScriptedLLM(byte_level_folder(tmp_path / "plain"))
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([WEATHER]))
    with pytest.raises(ParameterError, match="thinking"):
        session_of(plain, thinking="on")
    session = session_of(plain)
    with pytest.raises(ParameterError, match="thinking"):
        run_command(session, "/think on")
    with pytest.raises(ParameterError, match="tools"):
        run_command(session, f"/tools {file}")
    plain.text.close()


def test_a_line_that_fails_leaves_the_conversation_as_it_was(
    llm: ScriptedLLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": "a"}]))
    session = session_of(llm)
    chat = Chat(session)
    for line in (f"/load {file}", "/nothing", "x" * 500):
        assert chat._handle(line)
        assert [message["content"] for message in session.messages] == ["a"]
    file.write_text(json.dumps([{"role": "assistant", "tool_calls": 5}]))
    assert chat._handle(f"/load {file}")
    assert "messages[0].tool_calls" in capsys.readouterr().err


def test_what_the_model_says_is_printed_as_it_is(llm: ScriptedLLM, capsys: pytest.CaptureFixture[str]) -> None:
    said = "a[:key:] :smile: [b]\tc\r\x07 <think>"
    llm.replies = [said]
    assert Chat(session_of(llm)).once("x") == 0
    assert capsys.readouterr().out == said + "\n"


def test_every_command_is_in_the_help(llm: ScriptedLLM) -> None:
    told = run_command(session_of(llm), "/help").told
    assert set(re.findall(r"^  /(\w+)", told, re.MULTILINE)) == {
        "help", "clear", "undo", "retry", "system", "think", "tools", "set", "save", "load", "stats", "exit",
    }  # fmt: skip


def test_a_conversation_by_pipe(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "model")
    done = subprocess.run(
        [*SIMULATED, "chat", str(folder), "--max-tokens", "4"], input="hello\n/stats\n/nope\n/exit\n",
        capture_output=True, text=True, cwd=REPOSITORY, env=ENVIRONMENT, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "output: 4 tokens" in done.stderr
    assert "/nope: is no command" in done.stderr
    assert "\x1b[" not in done.stdout


def test_one_message(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "model")
    done = call("chat", str(folder), "--message", "hello", "--max-tokens", "4", program=SIMULATED)
    assert done.returncode == 0, done.stderr
    assert "output: 4 tokens" in done.stderr


def test_a_model_without_a_template(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "model", chat_template=None)
    done = call("chat", str(folder), program=SIMULATED)
    assert done.returncode == 2
    assert "has no chat template; use `jaxinfer generate`" in done.stderr


def test_ctrl_c_ends_an_answer_and_ctrl_d_the_chat(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path / "model")
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*SLOW_STEPS, "chat", str(folder)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=REPOSITORY,
        env={**ENVIRONMENT, "TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""

    def until(said: bytes, signalled: bool = False) -> None:
        nonlocal shown
        deadline = time.monotonic() + 30
        while said not in shown:
            if signalled:
                # One that comes between readline's prompt and its wait is seen with the next key only.
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 4096)
        shown = shown[shown.index(said) + len(said) :]

    try:
        until(b"> ")
        os.write(ours, b"hello\n")
        time.sleep(1.5)  # steps of a second each: it is in the middle of its answer
        process.send_signal(signal.SIGINT)
        until(b"stopped")
        until(b"> ")
        until(b"Ctrl-D leaves", signalled=True)
        os.write(ours, b"\x04")
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(ours)
