"""The tools that everybody tries first, asked for in natural words."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from demo_data.phrasing import made_up, pick
from demo_data.tool_pools import tool
from demo_data.words import CITIES, LONG_CITIES, NAMES, STORY_THINGS, WORDS


class Wish(NamedTuple):
    """A tool, what the user says to have it called, and the arguments of each call."""

    tool: dict[str, Any]
    ask: str
    calls: list[dict[str, Any]]


_TEXT, _INTEGER, _NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
_CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "INR")
_SYMBOLS = ("AAPL", "MSFT", "GOOG", "AMZN", "NVDA", "TSLA", "META", "IBM", "ORCL", "AMD", "INTC", "NFLX")
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Japanese", "Chinese", "Polish", "Dutch")


def known_wish(rng: Random) -> Wish:
    """One of the known tools with a request for it."""
    return rng.choice(_WISHES)(rng)


def _city(rng: Random) -> str:
    chance = rng.random()
    return made_up(rng) if chance < 0.2 else rng.choice(LONG_CITIES) if chance < 0.4 else rng.choice(CITIES)


def _weather(rng: Random) -> Wish:
    key, name = rng.choice(("city", "location", "place")), rng.choice(("get_weather", "get_current_weather"))
    about = rng.choice(("Get the weather", "Get the current weather in a given city", "Weather of a place", ""))
    unit = rng.random() < 0.5
    properties = {key: _TEXT, **({"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}} if unit else {})}
    offered = tool(name, about, properties, [key])
    city = _city(rng)
    if rng.random() < 0.15:
        other = rng.choice([c for c in CITIES if c != city])
        return Wish(offered, f"What is the weather in {city} and in {other}?", [{key: city}, {key: other}])
    asks = ("What is the weather in {c}?", "How is the weather in {c} today?", "What's the weather like in {c}?",
            "Weather in {c}, please.", "Is it raining in {c}?", "Tell me the weather in {c}.",
            "How warm is it in {c}?")  # fmt: skip
    ask, arguments = pick(rng, asks, c=city), {key: city}
    if unit and rng.random() < 0.5:
        arguments["unit"] = rng.choice(("celsius", "fahrenheit"))
        ask = f"{ask[:-1]} in {arguments['unit']}{ask[-1]}"
    return Wish(offered, ask, [arguments])


def _time(rng: Random) -> Wish:
    key, city = rng.choice(("city", "location", "timezone")), _city(rng)
    offered = tool(rng.choice(("get_time", "get_current_time")), "Get the current time", {key: _TEXT}, [key])
    asks = ("What time is it in {c}?", "Tell me the time in {c}.", "What is the time in {c}?", "How late is it in {c}?")
    return Wish(offered, pick(rng, asks, c=city), [{key: city}])


def _calculate(rng: Random) -> Wish:
    parts = [str(rng.randint(1, rng.choice((9, 99, 999)))) for _ in range(rng.choice((2, 2, 3)))]
    expression = parts[0] + "".join(f" {rng.choice('+-*/')} {part}" for part in parts[1:])
    offered = tool(
        rng.choice(("calculate", "calculator")), "Evaluate an expression", {"expression": _TEXT}, ["expression"]
    )
    asks = ("What is {e}?", "Calculate {e}.", "Compute {e}.", "How much is {e}?")
    return Wish(offered, pick(rng, asks, e=expression), [{"expression": expression}])


def _add(rng: Random) -> Wish:
    a, b, number = rng.randint(0, 999), rng.randint(0, 999), rng.choice((_INTEGER, _NUMBER))
    name = rng.choice(("add_numbers", "add"))
    offered = tool(name, "Add two numbers", {"a": number, "b": number}, ["a", "b"])
    asks = ("Add {a} and {b}.", "What is {a} plus {b}?", "What is {a} + {b}?", "Please add {a} and {b}.")
    return Wish(offered, pick(rng, asks, a=a, b=b), [{"a": a, "b": b}])


def _search(rng: Random) -> Wish:
    query = " ".join(rng.sample(WORDS, rng.randint(1, 3)))
    offered = tool(rng.choice(("search", "web_search")), "Search the web", {"query": _TEXT}, ["query"])
    asks = ("Search for {q}.", "Search the web for {q}.", "Look up {q}.", "Find pages about {q}.")
    return Wish(offered, pick(rng, asks, q=query), [{"query": query}])


def _email(rng: Random) -> Wish:
    to = f"{(made_up(rng) if rng.random() < 0.3 else rng.choice(NAMES)).lower()}@example.com"
    to = rng.choice(NAMES) if rng.random() < 0.3 else to
    subject, body = rng.choice(WORDS), " ".join(rng.sample(WORDS, rng.randint(1, 3)))
    offered = tool(
        "send_email", "Send an email", {"to": _TEXT, "subject": _TEXT, "body": _TEXT}, ["to", "subject", "body"]
    )
    asks = ("Send an email to {t} with subject {s} and body {b}.", "Email {t}, subject {s}, body {b}.",
            "Write an email to {t} with the subject {s} and the body {b}.")  # fmt: skip
    return Wish(offered, pick(rng, asks, t=to, s=subject, b=body), [{"to": to, "subject": subject, "body": body}])


def _convert(rng: Random) -> Wish:
    one, two = rng.sample(_CURRENCIES, 2)
    first, second = rng.choice((("from", "to"), ("from_currency", "to_currency")))
    properties = {"amount": _NUMBER, first: _TEXT, second: _TEXT}
    offered = tool("convert_currency", "Convert money", properties, list(properties))
    amount = rng.randint(1, rng.choice((9, 99, 999)))
    asks = (
        "Convert {a} {x} to {y}.",
        "How much is {a} {x} in {y}?",
        "Change {a} {x} into {y}.",
        "What is {a} {x} in {y}?",
    )
    arguments = {"amount": amount, first: one, second: two}
    return Wish(offered, pick(rng, asks, a=amount, x=one, y=two), [arguments])


def _translate(rng: Random) -> Wish:
    text, language = " ".join(rng.sample(WORDS, rng.randint(1, 3))), rng.choice(_LANGUAGES)
    offered = tool("translate", "Translate a text", {"text": _TEXT, "language": _TEXT}, ["text", "language"])
    asks = ("Translate {t} to {x}.", "Translate {t} into {x}.", "What is {t} in {x}?", "How do you say {t} in {x}?")
    return Wish(offered, pick(rng, asks, t=text, x=language), [{"text": text, "language": language}])


def _timer(rng: Random) -> Wish:
    key, minutes = rng.choice(("minutes", "duration")), rng.randint(1, 99)
    offered = tool("set_timer", "Set a timer", {key: _INTEGER}, [key])
    asks = ("Set a timer for {m} minutes.", "Start a timer of {m} minutes.", "Wake me in {m} minutes.")
    return Wish(offered, pick(rng, asks, m=minutes), [{key: minutes}])


def _stock(rng: Random) -> Wish:
    key, symbol = rng.choice(("symbol", "ticker")), rng.choice(_SYMBOLS)
    offered = tool("get_stock_price", "Price of a stock", {key: _TEXT}, [key])
    asks = ("What is the stock price of {s}?", "How much is {s} stock?", "Price of {s} stock?")
    return Wish(offered, pick(rng, asks, s=symbol), [{key: symbol}])


def _remind(rng: Random) -> Wish:
    thing, hour = rng.choice(STORY_THINGS), rng.randint(0, 23)
    offered = tool("set_reminder", "Set a reminder", {"text": _TEXT, "hour": _INTEGER}, ["text", "hour"])
    asks = ("Remind me of the {t} at {h}.", "Set a reminder for the {t} at {h}.")
    return Wish(offered, pick(rng, asks, t=thing, h=hour), [{"text": thing, "hour": hour}])


_WISHES: tuple[Callable[[Random], Wish], ...] = (
    _weather, _weather, _time, _calculate, _add, _search, _email, _convert, _translate, _timer, _stock, _remind,
)  # fmt: skip
