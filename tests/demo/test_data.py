"""The generated conversations and the rows made of them."""

import re
from itertools import islice

import numpy as np
import pytest
from demo_data import Conversation, conversations, plain_texts
from demo_training.template import CHAT_TEMPLATE, END_OF_TEXT, IM_END, IM_START, message, opening, pieces
from demo_training.tokens import batches, special, train_tokenizer
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

SAMPLE = list(islice(conversations(3), 3000))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, 600, samples=500)


def render(conversation: Conversation, prompt: bool = False) -> str:
    """What the chat template makes of a conversation."""
    messages = [{"role": "system", "content": conversation.system}] if conversation.system else []
    for turn in conversation.turns:
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.answer}]
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    return template.render(messages=messages[:-1] if prompt else messages, add_generation_prompt=prompt)


def test_a_seed_fixes_the_data():
    assert list(islice(conversations(3), 50)) == SAMPLE[:50]
    assert list(islice(conversations(4), 50)) != SAMPLE[:50]
    assert list(islice(plain_texts(3), 50)) == list(islice(plain_texts(3), 50))


def test_the_template_renders_what_was_trained():
    for conversation in SAMPLE[:300]:
        text = "".join(piece for piece, _ in pieces(conversation))
        assert render(conversation) == text
        last = conversation.turns[-1].answer + IM_END + "\n"
        assert render(conversation, prompt=True) + last == text


def test_the_template_refuses_a_role_that_was_not_trained():
    def fail(text: str) -> None:
        raise ValueError(text)

    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    with pytest.raises(ValueError, match="not tool"):
        template.render(messages=[{"role": "tool", "content": "x"}], raise_exception=fail)


def test_sums_are_right():
    found = 0
    for turn in (turn for conversation in SAMPLE for turn in conversation.turns):
        for left, sign, right, result in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)\.", turn.answer):
            a, b = int(left), int(right)
            assert int(result) == {"+": a + b, "-": a - b, "*": a * b}[sign]
            assert {left, right} <= set(re.findall(r"\d+", turn.user))
            found += 1
    assert found > 300


def test_every_name_in_a_question_about_it_was_said_before():
    for conversation in SAMPLE:
        said = ""
        for turn in conversation.turns:
            if turn.answer.startswith("Your name is "):
                assert turn.answer[len("Your name is ") : -1] in said
            said += turn.user


def test_no_text_holds_an_unfilled_field_or_a_special_token():
    texts = [text for c in SAMPLE for turn in c.turns for text in turn] + list(islice(plain_texts(1), 500))
    assert not [text for text in texts if re.search(r"[{}<|>]|\b(a)\s+[aeio][a-z]+ (lived|came)", text)]


def test_rows_weigh_answers_more(tokenizer: Tokenizer):
    batch = next(batches(tokenizer, 0, 4, 128))
    assert (batch.tokens.shape, batch.weights.shape) == ((4, 129), (4, 128))
    start = [special(tokenizer, IM_START), *tokenizer.encode("user\n", add_special_tokens=False).ids]
    for tokens, weights in zip(batch.tokens, batch.weights, strict=True):
        heads = np.flatnonzero(tokens[:-1] == start[0])
        assert np.all(weights[heads - 1][heads > 0] < 1)  # the head of a message is never an answer
        ends = np.flatnonzero(tokens == special(tokenizer, IM_END))
        assert set(weights[ends - 1].tolist()) >= {np.float32(0.1), np.float32(1.0)}  # users' and the model's


def test_special_tokens_are_whole_and_digits_single(tokenizer: Tokenizer):
    text = message("user", "12 + 345") + opening("assistant") + END_OF_TEXT
    tokens = tokenizer.encode(text).tokens
    assert [t for t in tokens if t.startswith("<|")] == [IM_START, IM_END, IM_START, END_OF_TEXT]
    assert [t for t in tokens if t.isdigit()] == list("12345")
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
