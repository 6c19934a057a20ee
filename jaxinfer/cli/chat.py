"""`jaxinfer chat`: a conversation in the terminal."""

import contextlib
import importlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from jaxinfer.cli.chat_commands import CommandOutcome, run_command
from jaxinfer.cli.chat_session import ChatSession, Thinking, read_tools
from jaxinfer.cli.sampling import SamplingFlags, with_seed
from jaxinfer.cli.settings import ONE_AT_A_TIME, parse_settings
from jaxinfer.console.progress import build_progress
from jaxinfer.console.terminal import Output
from jaxinfer.errors import JaxinferError, ParameterError
from jaxinfer.llm import LLM
from jaxinfer.text.answer.forms import UnparsedForm
from jaxinfer.text.answer.parts import AnswerPart
from jaxinfer.text.defaults import GenerationDefaults


@dataclass(frozen=True)
class ChatOptions:
    """Options of the conversation's start."""

    message: str | None = None
    """Ask this, print the answer, and leave."""
    system: str | None = None
    """The system message."""
    tools: Path | None = None
    """JSON file of tools, a list of OpenAI's form; you are asked for what they say."""
    thinking: Thinking = "auto"
    """Let the model think before it answers, or not; auto: as its chat template has it."""


def run(arguments: Sequence[str]) -> int:
    """Talks until the user leaves; answers go to standard output, everything else to standard error."""
    groups = {"chat": ChatOptions(), "sampling": SamplingFlags()}
    config, settings = parse_settings("chat", groups, arguments, engine=ONE_AT_A_TIME)
    options: ChatOptions = settings.chat
    sampling = with_seed(settings.sampling, config.load.seed)
    sampling.params(GenerationDefaults(), default_max_tokens=None)  # what is wrong is told before a model is loaded
    if options.tools is not None:
        read_tools(options.tools)
    with build_progress() as progress:
        llm = LLM(config=config, progress=progress)
    try:
        if not llm.text.chat_template.exists:
            raise ParameterError("model", f"{config.model} has no chat template; use `jaxinfer generate`")
        session = ChatSession(llm, sampling, system=options.system, thinking=options.thinking)
        if options.tools is not None:
            session.use_tools(options.tools)
        chat = Chat(session)
        chat.warn(llm.text.chat_template.unparsed_forms())
        return chat.once(options.message) if options.message is not None else chat.talk(config.model)
    finally:
        llm.close()


class Chat:
    """The terminal's side of a session."""

    def __init__(self, session: ChatSession):
        self._session = session
        self._out = Output()
        self._err = Console(stderr=True, soft_wrap=True, highlight=False)
        self._asks_tools = True

    def warn(self, forms: Sequence[UnparsedForm]) -> None:
        """Names what of answers is not taken apart."""
        for form in forms:
            self._note(f"warning: {form}")

    def once(self, message: str) -> int:
        """One question; what it took goes to standard error. Tools are asked for on a terminal only."""
        self._asks_tools = sys.stdin.isatty()
        self._session.say(message)
        self._answer()
        self._note(self._session.statistics)
        return 0

    def talk(self, model: str) -> int:
        """Questions from standard input until it ends."""
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")  # gives `input` its history and keys
        if sys.stdin.isatty():
            self._note(f"talking to {model}; /help lists the commands, Ctrl-D leaves")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        while True:
            try:
                line = self._read("> ")
            except EOFError:
                return 0
            except KeyboardInterrupt:
                self._note("\nCtrl-D leaves")
                continue
            if not self._handle(line):
                return 0

    def _handle(self, line: str) -> bool:
        """False where the user leaves."""
        if not line.strip():
            return True
        before = list(self._session.messages)
        try:
            if line.startswith("/"):
                outcome = self._command(line)
                return self._answer() if outcome.answer else not outcome.leave
            self._session.say(line)
            return self._answer()
        except JaxinferError as error:
            self._complain(error)
            self._session.messages = before
        return True

    def _command(self, line: str) -> CommandOutcome:
        outcome = run_command(self._session, line)
        if outcome.told:
            self._note(outcome.told)
        return outcome

    def _answer(self) -> bool:
        """Prints an answer, and further ones while the model calls tools. False where the user leaves."""
        while True:
            if not self._print_answer():
                self._note("stopped")
                return True
            calls = self._session.messages[-1].get("tool_calls") or []
            if not calls:
                return True
            outcome = self._hear(calls)
            if not outcome.answer:
                return not outcome.leave

    def _print_answer(self) -> bool:
        """False where Ctrl-C has ended it."""
        before = AnswerPart()
        with _interruptible() as stopped:
            for part in self._session.answer(stopped):
                self._show(part, before)
                before = part
            interrupted = stopped()
        self._out.write("\n")
        return not interrupted

    def _hear(self, calls: Sequence[dict[str, Any]]) -> CommandOutcome:
        """Asks for what the tools say. What becomes of the conversation: it is answered, goes on, or is over."""
        for call in calls:
            name = call["function"]["name"]
            try:
                said = self._ask_tool(name) if self._asks_tools else CommandOutcome(leave=True)
            except EOFError:
                said = CommandOutcome(leave=True)
            except KeyboardInterrupt:
                self._note(f"\n{name} said nothing; /undo takes the question back")
                return CommandOutcome()
            if isinstance(said, CommandOutcome):
                if said.leave:
                    self._note(f"{name} was called and nobody says what it gives: the chat ends here")
                return said
            self._session.tool_said(said)
        return CommandOutcome(answer=True)

    def _ask_tool(self, name: str) -> str | CommandOutcome:
        """Return the answer that the user gives for a tool, or the outcome of a command that has changed or left the
        conversation instead."""
        before = list(self._session.messages)
        while True:
            line = self._read(f"{name} says> ")
            if not line.startswith("/"):
                return line
            try:
                outcome = self._command(line)
            except JaxinferError as error:
                self._complain(error)
                continue
            if outcome.leave or outcome.answer or self._session.messages != before:
                return outcome

    def _show(self, part: AnswerPart, before: AnswerPart) -> None:
        if before.reasoning and not part.reasoning:
            self._out.write("\n\n")
        if part.reasoning:
            self._out.dim(part.reasoning)
        elif part.tool_call is not None:
            self._out.call("\n" * bool(before.content) + f"→ {part.tool_call.name}({part.tool_call.arguments})")
        else:
            self._out.write(part.content)

    def _read(self, prompt: str) -> str:
        """A line; one that ends with a backslash goes on with the next."""
        shown = prompt if sys.stdin.isatty() else ""
        line = input(shown)
        while line.endswith("\\"):
            line = line[:-1] + "\n"
            try:
                line += input("… " if shown else "")
            except EOFError:
                return line
        return line

    def _complain(self, error: JaxinferError) -> None:
        self._err.print(str(error), style="red", markup=False, emoji=False)

    def _note(self, text: str) -> None:
        self._err.print(text, style="dim", markup=False, emoji=False)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C sets a flag instead of raising in the middle of an engine's step."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
