"""What is held out stays out of training: read back from the texts, not from what the generator declares."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest
from demo_data import Conversation, Message, conversations, plain_texts, split_of
from demo_data.facts import fact_count
from demo_data.tools import calls_in
from demo_evaluation.questions import QUOTAS, held_out

Content = tuple[object, ...]

SIGNS = {"+": "sum", "-": "difference", "*": "product"}


def calculations(text: str) -> Iterator[Content]:
    """Every `a + b = ` of a text."""
    for left, sign, right in re.findall(r"(?<![\d-])(?<!\+ )(?<!- )(\d+) ([-+*]) (\d+) =", text):
        a, b = int(left), int(right)
        yield (SIGNS[sign], *(sorted((a, b)) if sign == "+" else (a, b)))


def asked_for(user: str, answer: str) -> Iterator[Content]:
    """What a list, an object or a call of an answer answers, judging by the words of the question."""
    listed = re.fullmatch(r"([a-z0-9]+(, [a-z0-9]+)+)\.", answer)
    if listed and re.search(r"sort|order", user, re.IGNORECASE) and "reverse the order" not in user.lower():
        items = [int(item) if item.isdigit() else item for item in listed.group(1).split(", ")]
        yield ("sort", *items)
    if listed and re.search(r"count|list the numbers|write the numbers", user, re.IGNORECASE):
        numbers = [int(item) for item in listed.group(1).split(", ")]
        yield ("count", numbers[0], numbers[-1], abs(numbers[1] - numbers[0]))
    if answer.startswith("{"):
        yield ("object", *sorted((key, str(value)) for key, value in json.loads(answer).items()))
    if calls := calls_in(answer):
        yield ("call", calls[0][0], *(json.dumps(arguments, sort_keys=True) for _, arguments in calls))


def contents(conversation: Conversation) -> Iterator[Content]:
    """What the answers of a conversation teach."""
    user = ""
    for message in conversation.messages:
        user = message.content if message.role == "user" else user
        if message.role == "assistant":
            yield from calculations(message.thought)
            yield from calculations(message.content)
            yield from asked_for(user, message.content)


def test_no_held_out_content_is_trained_on():
    seen = Counter[object]()
    for conversation in islice(conversations("any seed"), 22_000):
        for content in contents(conversation):
            assert split_of(content) == "train", content
            seen[content[0]] += 1
    assert min(seen[kind] for kind in ("sum", "difference", "product", "sort", "count", "object", "call")) > 400


def test_no_held_out_wording_is_trained_on():
    wordings = {str(q.content[1]) for q in held_out(split="test") if q.content[0] == "wording" and len(q.content) == 2}
    shapes = [re.sub(r"\\\{\w\\\}", ".+", re.escape(re.sub("[:,]", "", wording.rstrip("?.!")))) for wording in wordings]
    held = re.compile(
        rf"(please, |hey, |hi, |ok, |so, )?({'|'.join(shapes)})(, please)?[.?!]?( /think| /no_think)?", re.IGNORECASE
    )
    said = [m.content for c in islice(conversations(5), 20_000) for m in c.messages if m.role == "user"]
    assert len(wordings) > 30
    said += [text.split(" is ")[0] + " is" for text in islice(plain_texts(5), 2_000)]
    assert [text for text in said if held.fullmatch(text) or held.fullmatch(re.sub("[:,]", "", text))] == []


def test_the_evaluation_asks_2000_different_held_out_questions():
    questions = held_out()
    assert len(questions) == sum(QUOTAS.values()) == 2000
    assert {split_of(question.content) for question in questions} == {"test"}
    assert len({(repr(question.tools), question.messages, question.thinking) for question in questions}) == 2000
    assert [q.messages for q in held_out(count=100)] == [q.messages for q in held_out(count=100)]
    assert {split_of(question.content) for question in held_out(300, split="validation")} == {"validation"}


def test_every_fact_can_be_asked():
    questions = [question for question in held_out() if question.kind.startswith("fact")]
    assert fact_count() >= 300
    assert len({question.answer.content for question in questions}) > 290


@pytest.mark.parametrize("content", [("sum", 2, 3), ("sum", 3, 4), ("product", 7, 8), ("difference", 15, 8)])
def test_what_is_quoted_or_a_step_is_trained_on(content: Content):
    assert split_of(content) == "train"


def test_the_reference_answers_are_right_and_broken_ones_wrong():
    for question in held_out(400):
        assert question.right(question.answer.content)
        assert not question.right("")
        assert not question.right("I do not know.")
        other = Message("assistant", re.sub(r"\d", "8", question.answer.content.replace("8", "1")))
        if other.content != question.answer.content and not question.kind.startswith("tool answer"):
            assert not question.right(other.content), (question.answer.content, other.content)
