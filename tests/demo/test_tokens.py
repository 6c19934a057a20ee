"""The tokenizer, and rows packed with conversations."""

from itertools import islice

import numpy as np
import pytest
from demo_data import Conversation, Message, conversations
from demo_data.words import WORDS
from demo_training.template import END_OF_TEXT, IM_END, IM_START, TAGS, opening, pieces
from demo_training.tokenizer import SPECIAL, special, train_tokenizer
from demo_training.tokens import SHAPES, batches, document_of, documents, pack
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(0, 1500, merged=500, samples=8000)


def test_digits_and_common_words_are_single_tokens(tokenizer: Tokenizer):
    assert tokenizer.encode("12 + 345", add_special_tokens=False).tokens == ["1", "2", "Ġ+", "Ġ", "3", "4", "5"]
    for word in WORDS:
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) == 1, word


def test_tags_show_in_the_text_and_ends_of_messages_do_not(tokenizer: Tokenizer):
    text = opening("assistant") + "".join(TAGS) + IM_END + END_OF_TEXT
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids) == "assistant\n" + "".join(TAGS)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert len({special(tokenizer, mark) for mark in (*SPECIAL, *TAGS)}) == len(SPECIAL) + len(TAGS)


def test_the_same_seed_gives_the_same_tokenizer(tokenizer: Tokenizer):
    assert train_tokenizer(0, 1500, merged=500, samples=8000).to_str() == tokenizer.to_str()


def test_a_document_is_the_conversations_text_and_marks_the_answers(tokenizer: Tokenizer):
    for conversation in islice(conversations(2), 200):
        document = document_of(tokenizer, conversation)
        text = "".join(text for text, _ in pieces(conversation))
        assert tokenizer.decode(document.ids, skip_special_tokens=False) == text
        said = [token for token, said in zip(document.ids, document.said, strict=True) if said]
        answers = "".join(text for text, said in pieces(conversation) if said)
        assert tokenizer.decode(said, skip_special_tokens=False) == answers
        assert answers.endswith(conversation.messages[-1].content + IM_END)


def test_an_answer_whose_thought_is_past_is_not_learned():
    said = (Message("user", "a /think"), Message("assistant", "b"), Message("user", "c"), Message("assistant", "d"))
    learned = [text for text, said in pieces(Conversation("", (), said)) if said]
    assert learned == [f"d{IM_END}"]


def test_rows_hold_whole_documents_that_are_kept_apart(tokenizer: Tokenizer):
    whole = {tuple(document.ids) for document in islice(documents(tokenizer, "x"), 3000)}
    for batch in islice(batches(tokenizer, "x"), 6):
        assert batch.tokens.shape in SHAPES
        for row in range(len(batch.tokens)):
            for segment in range(1, batch.segments[row].max() + 1):
                inside = batch.segments[row] == segment
                assert tuple(batch.tokens[row][inside].tolist()) in whole
                assert batch.positions[row][inside].tolist() == list(range(inside.sum()))
        assert np.all(batch.tokens[batch.segments == 0] == 0)


def test_the_targets_are_the_answers_in_order(tokenizer: Tokenizer):
    for pair in zip(*[islice(documents(tokenizer, "y"), 40)] * 2, strict=True):
        batch = pack([list(pair)], 600)
        said = [token for document in pair for token, said in zip(*document, strict=True) if said]
        assert batch.targets[batch.weights > 0].tolist() == said


def test_what_is_scored_is_what_is_said(tokenizer: Tokenizer):
    batch = next(batches(tokenizer, "x"))
    real = batch.weights > 0
    flat, segments = batch.tokens.reshape(-1), batch.segments.reshape(-1)
    assert np.array_equal(flat[batch.at[real] + 1], batch.targets[real])
    assert np.array_equal(segments[batch.at[real] + 1], segments[batch.at[real]])
    starts = set(np.flatnonzero(flat == special(tokenizer, IM_START)).tolist())
    assert not starts & set((batch.at[real] + 1).tolist())
    assert 0.3 < real.sum() / (segments > 0).sum() < 0.6
    assert (segments > 0).mean() > 0.85
