"""The shipped pair through the engine: held-out questions, and answers that follow what changes in a question."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import pytest
from demo_data.tools import calls_in
from demo_evaluation.agreement import agreement
from demo_evaluation.evaluation import answer
from demo_evaluation.questions import held_out

import jaxinfer
from jaxinfer import LLM, SamplingParams
from jaxinfer.build import DEMO_FOLDER

GREEDY = SamplingParams(temperature=0.0, max_tokens=200)

Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    llm = LLM("demo", dtype="float32", max_num_seqs=16, max_num_batched_tokens=256, compile="lazy")
    yield llm
    llm.close()


def tool(name: str, /, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    verb, noun = name.split("_")
    function = {"name": name, "description": f"{verb.capitalize()} a {noun}", "parameters": schema}
    return {"type": "function", "function": {**function, "parameters": {**schema, "required": list(properties)}}}


BOOK = tool("book_table", name="string", seats="integer")
TOOLS = (BOOK, tool("cancel_flight", id="integer"), tool("print_report", title="string"))


def ask(llm: LLM, text: str, **options: Any) -> str:
    output = llm.chat([{"role": "user", "content": text}], GREEDY, use_tqdm=False, **options)
    return output[0].outputs[0].text


def share(pairs: Sequence[tuple[object, object]]) -> float:
    """How many answers are what was expected."""
    return sum(said == expected for said, expected in pairs) / len(pairs)


@pytest.mark.smoke
def test_what_the_documentation_shows(llm: LLM):
    assert ask(llm, "Hello!") == "Hello! I am the demo model of jaxinfer. How can I help you?"
    assert ask(llm, "What is 3 plus 4?") == "3 + 4 = 7."
    assert ask(llm, "Count to 5.") == "1, 2, 3, 4, 5."


@pytest.mark.long
def test_a_sample_of_the_held_out_questions(llm: LLM):
    results = answer(llm, held_out(66))
    assert len(results) >= 60
    wrong = [(r.question.messages[-1].content, r.text) for r in results if not r.right]
    assert len(wrong) <= 0.1 * len(results), wrong


def test_the_order_of_the_tools_does_not_matter(llm: LLM):
    expected = [("book_table", {"name": "Clara", "seats": 6})]
    asked = "Book a table with name Clara and seats 6."
    pairs = [(calls_in(ask(llm, asked, tools=list(order))), expected) for order in permutations(TOOLS)]
    assert share(pairs) >= 0.8, pairs


def test_the_call_follows_the_name_the_numbers_and_the_wish(llm: LLM):
    asked: dict[str, list[Call]] = {
        f"Book a table with name {name} and seats {seats}.": [("book_table", {"name": name, "seats": seats})]
        for name, seats in (("Anna", 3), ("Omar", 4), ("Leo", 12), ("Grace", 27))
    }
    asked |= {f"Cancel the flight with id {number}.": [("cancel_flight", {"id": number})] for number in (5, 81, 340)}
    asked |= {f"Print a report with title {word}.": [("print_report", {"title": word})] for word in ("tiger", "olive")}
    pairs = [(calls_in(ask(llm, text, tools=list(TOOLS))), calls) for text, calls in asked.items()]
    assert share(pairs) >= 0.75, pairs


def test_the_call_follows_the_tools_own_names(llm: LLM):
    pairs = []
    for name, key in (
        ("rent_boat", "owner"),
        ("share_photo", "user"),
        ("check_garden", "guest"),
        ("open_door", "name"),
    ):
        verb, noun = name.split("_")
        said = ask(llm, f"{verb.capitalize()} a {noun} with {key} Emma.", tools=[*TOOLS, tool(name, **{key: "string"})])
        pairs.append((calls_in(said), [(name, {key: "Emma"})]))
    assert share(pairs) >= 0.75, pairs


def test_thinking_is_there_when_asked_for_and_only_then(llm: LLM):
    asked = "What is 27 + 35?"
    on = [ask(llm, asked, chat_template_kwargs={"enable_thinking": True}), ask(llm, f"{asked} /think")]
    off = [
        ask(llm, asked),
        ask(llm, f"{asked} /no_think"),
        ask(llm, f"{asked} /think", chat_template_kwargs={"enable_thinking": False}),
    ]
    assert all(text.startswith("<think>\n") and "\n</think>\n\n27 + 35 = " in text for text in on)
    assert all(text.startswith("27 + 35 = ") for text in off)


@pytest.mark.long
def test_the_draft_agrees_with_the_target_on_most_tokens(llm: LLM):
    results = answer(llm, held_out(22))
    draft = jaxinfer.LLM(
        str(DEMO_FOLDER / "draft"), dtype="float32", max_num_seqs=16, max_num_batched_tokens=256, compile="lazy"
    )
    assert draft.get_tokenizer().encode("12 zebra", param="x") == llm.get_tokenizer().encode("12 zebra", param="x")
    assert agreement(draft, results) > 0.6
    draft.close()
