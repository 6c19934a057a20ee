"""The generated conversations."""

import json
import re
from itertools import islice

from demo_data import conversations, plain_texts
from demo_data.tools import calls_in
from demo_data.words import WORDS

SAMPLE = list(islice(conversations(3), 4000))
EXCHANGES = [
    (conversation, before, message)
    for conversation in SAMPLE
    for before, message in zip(conversation.messages, conversation.messages[1:], strict=False)
    if message.role == "assistant"
]


def test_a_seed_fixes_the_data():
    assert list(islice(conversations(3), 50)) == SAMPLE[:50]
    assert list(islice(conversations(4), 50)) != SAMPLE[:50]
    assert list(islice(plain_texts(3), 50)) == list(islice(plain_texts(3), 50))


def test_arithmetic_is_right():
    found = 0
    for _, before, message in EXCHANGES:
        for left, sign, right, result in re.findall(r"^(\d+) ([-+*]) (\d+) = (-?\d+)\.", message.content):
            a, b = int(left), int(right)
            assert int(result) == {"+": a + b, "-": a - b, "*": a * b}[sign]
            assert {left, right} <= set(re.findall(r"\d+", before.content))
            found += 1
    assert found > 700


def test_steps_of_arithmetic_are_right():
    steps = 0
    for _, _, message in EXCHANGES:
        for terms, result in re.findall(r"(?:Units|Tens): ([\d +-]+) = (\d+)\.", message.thought):
            total = sum(int(term.replace(" ", "")) for term in re.findall(r"[-+]? ?\d+", terms))
            assert total == int(result), message.thought
            steps += 1
        if joined := re.search(r"So (\d+) is (\d+)\.$", message.thought):
            assert int(joined[1]) == int(joined[2]), message.thought
        if multiples := re.search(r"(\d+) \* (\d+): ([\d, ]+)\.$", message.thought):
            low, high, listed = int(multiples[1]), int(multiples[2]), multiples[3].split(", ")
            assert [int(item) for item in listed] == [high * i for i in range(1, low + 1)]
    assert steps > 200


def test_lists_of_words_are_sorted_or_reversed():
    words, found = set(WORDS), 0
    for _, before, message in EXCHANGES:
        said = message.content.rstrip(".").split(", ")
        if len(said) < 3 or not set(said) <= words:
            continue
        asked = [word for word in re.findall(r"[a-z]+", before.content.lower()) if word in said]
        assert said in (sorted(asked), asked[::-1])
        found += 1
    assert found > 150


def test_calls_name_a_tool_of_the_conversation_and_its_parameters():
    found = 0
    for conversation, before, message in EXCHANGES:
        if not (calls := calls_in(message.content) if "<tool_call>" in message.content else None):
            continue
        tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        for name, arguments in calls:
            assert set(tools[name]["required"]) <= set(arguments) <= set(tools[name]["properties"])
            for value in arguments.values():
                written = str(value).lower() if isinstance(value, bool) else str(value)
                assert written.lower() in before.content.lower()
            found += 1
    assert found > 300


def test_answers_from_tools_hold_every_value():
    for _, before, message in EXCHANGES:
        if before.role == "tool" and before.content.startswith("{"):
            for key, value in json.loads(before.content).items():
                assert f"{key} is {value}" in message.content[0].lower() + message.content[1:]


def test_only_the_last_answer_thinks_and_only_when_asked():
    for conversation in SAMPLE:
        assert not any(message.thought for message in conversation.messages[:-1])
        users = [message.content for message in conversation.messages if message.role == "user"]
        assert bool(conversation.messages[-1].thought) == ("/think" in users[-1])
        assert not any("/think" in text for text in users[:-1])


def test_no_text_holds_an_unfilled_field_or_a_special_token():
    texts = [m.content + m.thought for c in SAMPLE for m in c.messages] + list(islice(plain_texts(1), 500))
    assert not [text for text in texts if re.search(r"<\||\|>|\{\w\}", text)]
