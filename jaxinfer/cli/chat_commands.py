"""Commands of `jaxinfer chat`, which begin with `/`."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jaxinfer.cli.chat_session import ChatSession
from jaxinfer.cli.sampling import SamplingFlags
from jaxinfer.config_tree import with_values
from jaxinfer.errors import ParameterError
from jaxinfer.text.defaults import GenerationDefaults


class CommandOutcome(NamedTuple):
    """told: a line for the user. answer: the model has to answer now. leave: the conversation is over."""

    told: str = ""
    answer: bool = False
    leave: bool = False


class Command(NamedTuple):
    """argument: what follows the name, as the help shows it. run: gets the session and the argument's text."""

    argument: str
    text: str
    run: Callable[[ChatSession, str], CommandOutcome]


def run_command(session: ChatSession, line: str) -> CommandOutcome:
    """Runs `/name argument`. Raises ParameterError for one that does not exist, or where it cannot be done."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get({"quit": "exit", "?": "help"}.get(name, name))
    if command is None:
        raise ParameterError(f"/{name}", "is no command; /help lists them")
    if bool(argument.strip()) and not command.argument:
        raise ParameterError(f"/{name}", "takes no argument")
    return command.run(session, argument.strip())


def _help(session: ChatSession, argument: str) -> CommandOutcome:
    lines = [f"  /{name} {command.argument}".ljust(24) + command.text for name, command in COMMANDS.items()]
    return CommandOutcome("\n".join([*lines, *_KEYS]))


def _clear(session: ChatSession, argument: str) -> CommandOutcome:
    session.clear()
    return CommandOutcome("a new conversation")


def _undo(session: ChatSession, argument: str) -> CommandOutcome:
    said = session.undo()
    return CommandOutcome("there is nothing to take back" if said is None else f"taken back: {said}")


def _retry(session: ChatSession, argument: str) -> CommandOutcome:
    said = session.undo()
    if said is None:
        return CommandOutcome("there is nothing to answer")
    session.say(said)
    return CommandOutcome(answer=True)


def _system(session: ChatSession, argument: str) -> CommandOutcome:
    session.set_system(argument)
    return CommandOutcome("system message set" if argument else "no system message")


def _think(session: ChatSession, argument: str) -> CommandOutcome:
    if argument not in ("auto", "on", "off"):
        raise ParameterError("/think", f"{argument or 'nothing'} is not one of auto, on, off")
    session.think(argument)
    return CommandOutcome(f"thinking: {argument}")


def _tools(session: ChatSession, argument: str) -> CommandOutcome:
    if argument == "off":
        session.tools = []
        return CommandOutcome("no tools")
    if argument:
        session.use_tools(Path(argument))
    names = ", ".join(tool["function"]["name"] for tool in session.tools)
    return CommandOutcome(f"tools: {names}" if names else "no tools")


def _set(session: ChatSession, argument: str) -> CommandOutcome:
    name, _, value = argument.partition(" ")
    if not name:
        params = session.params
        said = {field.name: getattr(params, field.name) for field in dataclasses.fields(SamplingFlags)}
        return CommandOutcome("\n".join(f"  {key}: {_shown(value)}" for key, value in said.items()))
    sampling = with_values(session.sampling, {name: _parsed(name.replace("-", "_"), value)})
    sampling.params(GenerationDefaults(), default_max_tokens=None)  # raises where it is out of range
    session.sampling = sampling
    return CommandOutcome(f"{name}: {getattr(sampling, name.replace('-', '_'))}")


def _shown(value: Any) -> str:
    """A value as `/set` takes it."""
    if isinstance(value, Mapping):
        value = [f"{token}={bias:g}" for token, bias in value.items()]
    if isinstance(value, list | tuple | frozenset):
        value = " ".join(map(str, value)) or None
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(name: str, text: str) -> Any:
    """The value that a text means; what stands for nothing is the default."""
    if not text.strip():
        return getattr(SamplingFlags(), name, None)
    if name in ("stop", "logit_bias", "bad_words"):
        return text.split()
    try:
        ids = name in ("stop_token_ids", "allowed_token_ids")
        return [yaml.safe_load(part) for part in text.split()] if ids else yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _save(session: ChatSession, argument: str) -> CommandOutcome:
    session.save(_file("save", argument))
    return CommandOutcome(f"{len(session.messages)} messages written to {argument}")


def _load(session: ChatSession, argument: str) -> CommandOutcome:
    session.load(_file("load", argument))
    return CommandOutcome(f"{len(session.messages)} messages")


def _file(name: str, argument: str) -> Path:
    if not argument:
        raise ParameterError(f"/{name}", "needs a file")
    return Path(argument).expanduser()


def _stats(session: ChatSession, argument: str) -> CommandOutcome:
    return CommandOutcome(session.statistics or "nothing was answered yet")


def _exit(session: ChatSession, argument: str) -> CommandOutcome:
    return CommandOutcome(leave=True)


_KEYS = (
    "  A line that ends with \\ goes on. Ctrl-C ends an answer, Ctrl-D the chat.",
    "  Commands work where a tool's result is asked for, too; a result that begins with / has a space before it.",
)

COMMANDS = {
    "help": Command("", "this list", _help),
    "clear": Command("", "forget the conversation, but not the system message", _clear),
    "undo": Command("", "take back the last question and its answer", _undo),
    "retry": Command("", "answer the last question again", _retry),
    "system": Command("[TEXT]", "set the system message, or remove it", _system),
    "think": Command("auto|on|off", "let the model think before it answers", _think),
    "tools": Command("[FILE|off]", "offer tools from a JSON file of OpenAI's form; show them", _tools),
    "set": Command("[NAME VALUE]", "change a sampling parameter, or put it back; show them", _set),
    "save": Command("FILE", "write the messages as JSON", _save),
    "load": Command("FILE", "read them", _load),
    "stats": Command("", "what the last answer took", _stats),
    "exit": Command("", "leave", _exit),
}
