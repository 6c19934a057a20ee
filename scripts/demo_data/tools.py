"""Conversations with tools: calls, answers from what a tool gave, and questions that need none."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from demo_data.known_tools import Wish, known_wish
from demo_data.phrasing import a, capital, join, typed
from demo_data.question import Message, Question
from demo_data.split import split_of
from demo_data.tool_pools import (
    FLAG_PARAMETERS,
    NOUNS,
    NUMBER_PARAMETERS,
    TEXT_PARAMETERS,
    VERBS,
    parameter,
    parameter_value,
    tool,
)

_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_FILLED = ("{d} with {f}.", "Please {d} with {f}.", "{d}: {f}.", "Can you {d} with {f}?", "I want to {d} with {f}.")
_BARE = ("{d}.", "Please {d}.", "Can you {d}?", "I want to {d}.")
_STYLES = ("{k} {v}", "{k} {v}", "{k} = {v}", "{k}: {v}")


def tool_call(rng: Random, think: bool) -> Question:
    """A request that one of 1 to 4 tools fits. The content is the tool's name and the arguments."""
    wish, tools = _offer(rng)
    name = wish.tool["function"]["name"]
    thought = f"The tool {name} fits." if think else ""
    answer = Message("assistant", call_text(name, wish.calls), thought)
    expected = [(name, arguments) for arguments in wish.calls]
    return Question(_kind("tool call", think), _content(name, wish.calls), (Message("user",
    typed(rng, wish.ask)),), answer,
                    lambda text: calls_in(text) == expected, tools)  # fmt: skip


def tool_answer(rng: Random, think: bool) -> Question:
    """The answer from what a tool gave. The content is the call and its result."""
    wish, tools = _offer(rng)
    # The call before the answer is trained on too, so it must not be one that is held out.
    while len(wish.calls) > 1 or split_of(_content(wish.tool["function"]["name"], wish.calls)) != "train":
        wish, tools = _offer(rng)
    name, calls = wish.tool["function"]["name"], wish.calls
    values, shown, said = _result(rng)
    messages = (
        Message("user", typed(rng, wish.ask)),
        Message("assistant", call_text(name, calls)),
        Message("tool", shown),
    )
    thought = f"The tool {name} gave a result." if think else ""
    content = ("result", name, json.dumps(calls[0], sort_keys=True), shown)
    return Question(_kind("tool answer", think), content, messages, Message("assistant", said, thought),
                    lambda text: "<tool_call>" not in text and _says(text, values), tools)  # fmt: skip


def no_tool(rng: Random, think: bool, ask: Callable[[Random, bool], Question]) -> Question:
    """A question that no tool of the conversation fits; its content is that of the question itself."""
    question = ask(rng, think)
    tools = _shuffled(rng, [_generic(rng).tool for _ in range(rng.randint(1, 4))])
    right = question.right
    if think:
        question = replace(
            question, answer=question.answer._replace(thought="No tool is needed. " + question.answer.thought)
        )
    return replace(question, kind=_kind("no tool needed", think), tools=tools,
                   right=lambda text: "<tool_call>" not in text and right(text))  # fmt: skip


def call_text(name: str, calls: Sequence[dict[str, Any]]) -> str:
    """Calls of one tool as the model writes them."""
    return "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>' for arguments in calls
    )


def calls_in(text: str) -> list[tuple[str, Any]] | None:
    """The calls of an answer that holds nothing else, as name and arguments; None where one is not valid."""
    if _CALL.sub("", text).strip():
        return None
    try:
        found = [json.loads(call) for call in _CALL.findall(text)]
        return [(call["name"], call["arguments"]) for call in found]
    except (ValueError, KeyError, TypeError):
        return None


def _kind(name: str, think: bool) -> str:
    return f"{name}, thinking" if think else name


def _content(name: str, calls: Sequence[dict[str, Any]]) -> tuple[object, ...]:
    return ("call", name, *(json.dumps(arguments, sort_keys=True) for arguments in calls))


def _offer(rng: Random) -> tuple[Wish, tuple[dict[str, Any], ...]]:
    """A wish, and its tool among up to three others of different names."""
    wish = known_wish(rng) if rng.random() < 0.4 else _generic(rng)
    verb, _, noun = wish.tool["function"]["name"].partition("_")
    tools = {wish.tool["function"]["name"]: wish.tool}
    for _ in range(rng.randint(0, 3)):
        chance = rng.random()
        if chance < 0.3:
            other = known_wish(rng)
        elif chance < 0.65:
            other = _generic(
                rng, verb=verb if verb in VERBS and rng.random() < 0.5 else None, noun=noun if noun in NOUNS else None
            )
        else:
            other = _generic(rng)
        if not _alike(other.tool, tools):
            tools[other.tool["function"]["name"]] = other.tool
    return wish, _shuffled(rng, list(tools.values()))


def _alike(offered: dict[str, Any], tools: dict[str, Any]) -> bool:
    """Return whether a tool would do the job of one that is there: a name may begin or end alike, not both."""
    groups = ({"add", "add_numbers", "calculate", "calculator"}, {"get_weather", "get_current_weather"},
              {"get_time", "get_current_time"}, {"search", "web_search"}, {"calculate",
              "convert_currency"})  # fmt: skip
    name = offered["function"]["name"]
    return name in tools or any(name in group and group & set(tools) for group in groups)


def _shuffled(rng: Random, tools: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple(rng.sample(tools, len(tools)))


def _generic(rng: Random, verb: str | None = None, noun: str | None = None) -> Wish:
    """A tool put together from the pools, and a request that names what it needs."""
    verb, noun = verb or rng.choice(VERBS), noun or rng.choice(NOUNS)
    pool = [*TEXT_PARAMETERS, *NUMBER_PARAMETERS, *FLAG_PARAMETERS]
    names = rng.sample(pool, rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)))
    required = [name for name in names if rng.random() < 0.8]
    description = rng.choice(
        (f"{capital(verb)} {a(noun)}", f"{capital(verb)} {a(noun)}.", f"{capital(verb)} the {noun}", "")
    )
    offered = tool(f"{verb}_{noun}", description, {name: parameter(name, name in required) for name in names}, required)
    given = [name for name in names if name in required or rng.random() < 0.5]
    if rng.random() < 0.3:
        rng.shuffle(given)
    arguments = {name: parameter_value(rng, name) for name in given}
    return Wish(offered, _request(rng, verb, noun, arguments), [arguments])


def _request(rng: Random, verb: str, noun: str, arguments: dict[str, Any]) -> str:
    do = f"{verb} {rng.choice((a(noun), a(noun), 'the ' + noun))}"
    if not arguments:
        return capital(rng.choice(_BARE).format(d=do))
    style = rng.choice(_STYLES)
    parts = [style.format(k=k, v=str(v).lower() if isinstance(v, bool) else v) for k, v in arguments.items()]
    listed = join(parts) if rng.random() < 0.7 else ", ".join(parts)
    return capital(rng.choice(_FILLED).format(d=do, f=listed))


_RESULTS: dict[str, Callable[[Random], Any]] = {
    "temperature": lambda rng: rng.randint(-20, 40),
    "condition": lambda rng: rng.choice(("sunny", "cloudy", "rainy", "windy")),
    "status": lambda rng: rng.choice(("ok", "open", "closed", "done")), "id": lambda rng: rng.randint(1, 9999),
    "price": lambda rng: rng.randint(1, 999), "time": lambda rng: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
    "result": lambda rng: rng.randint(-99, 9999), "count": lambda rng: rng.randint(0, 99),
    "humidity": lambda rng: rng.randint(10, 99), "rate": lambda rng: rng.randint(1, 99) / 10,
    "name": lambda rng: parameter_value(rng, "name"), "city": lambda rng: parameter_value(rng, "city"),
}  # fmt: skip


def _result(rng: Random) -> tuple[list[str], str, str]:
    """The values of a result, the result as the tool writes it, and the sentence that says it."""
    if rng.random() < 0.2:
        value = (
            str(_RESULTS["result"](rng))
            if rng.random() < 0.5
            else str(parameter_value(rng, rng.choice(("name", "item", "day"))))
        )
        return [value], value, f"The result is {value}."
    keys = rng.sample(sorted(_RESULTS), rng.randint(1, 3))
    result = {key: _RESULTS[key](rng) for key in keys}
    said = join([f"the {key} is {value}" for key, value in result.items()])
    return [str(value) for value in result.values()], json.dumps(result), f"{capital(said)}."


def _says(text: str, values: list[str]) -> bool:
    return all(re.search(rf"(?<![\w.-]){re.escape(value)}(?![\w-]|\.\d)", text) for value in values)
