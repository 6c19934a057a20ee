"""OutputAssembler: kept tokens, stop strings over tokens, what a stop token shows."""

from pathlib import Path

import pytest

from jaxinfer.engine.types import FinishReason, TokenDelta, TokenLogprobs
from jaxinfer.sampling import SamplingParams
from jaxinfer.text import ChoiceDelta, OutputAssembler, Tokenizer, join_deltas
from tests.text.folders import byte_level_folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer(byte_level_folder(tmp_path))


def assemble(tokenizer: Tokenizer, deltas: list[TokenDelta], **params: object) -> list[ChoiceDelta]:
    assembler = OutputAssembler(tokenizer, [], SamplingParams(**params), 0)  # pyright: ignore[reportArgumentType]
    return [shown for delta in deltas if (shown := assembler.push(delta)) is not None]


def one_by_one(ids: list[int], last: FinishReason | None = None) -> list[TokenDelta]:
    reasons = [None] * (len(ids) - 1) + [last]
    return [TokenDelta("r", 0, [token], finish_reason=reason) for token, reason in zip(ids, reasons, strict=True)]


@pytest.mark.smoke
def test_a_stop_string_over_several_tokens_ends_the_choice_and_says_what_is_kept(tokenizer: Tokenizer) -> None:
    shown = assemble(tokenizer, one_by_one(tokenizer.encode("a b STOP c")), stop=("STOP",), max_tokens=64)
    assert "".join(delta.text for delta in shown) == "a b "
    last = shown[-1]
    assert (last.finish_reason, last.stop_reason, last.stop_at) == (FinishReason.STOP, "STOP", 8)
    assert sum(len(delta.token_ids) for delta in shown) == 8


def test_a_stop_string_inside_one_delta_drops_the_tokens_behind_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a STOP bcd")
    logprobs = [TokenLogprobs(token, -0.5, 1, []) for token in ids]
    shown = assemble(tokenizer, [TokenDelta("r", 0, ids, logprobs)], stop=("STOP",), include_stop_str_in_output=True)
    assert (shown[0].text, shown[0].stop_at) == ("a STOP", 6)
    assert [entry.token_id for entry in shown[0].logprobs or []] == ids[:6]


def test_a_stop_string_in_the_last_delta_needs_no_word_to_the_engine(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a STOPx")
    shown = assemble(tokenizer, [TokenDelta("r", 0, ids, finish_reason=FinishReason.LENGTH)], stop=("STOP",))
    assert (shown[0].text, shown[0].finish_reason, shown[0].stop_at) == ("a ", FinishReason.STOP, None)


def test_nothing_is_shown_after_the_end(tokenizer: Tokenizer) -> None:
    deltas = [*one_by_one(tokenizer.encode("xSTOPyz")), TokenDelta("r", 0, [], finish_reason=FinishReason.STOP)]
    shown = assemble(tokenizer, deltas, stop=("STOP",))
    assert [delta.finish_reason for delta in shown].count(FinishReason.STOP) == 1
    assert "".join(delta.text for delta in shown) == "x"


def test_held_text_is_shown_at_the_end(tokenizer: Tokenizer) -> None:
    shown = assemble(tokenizer, one_by_one(tokenizer.encode("x STO"), FinishReason.LENGTH), stop=("STOP",))
    assert [delta.text for delta in shown] == ["x", " ", "", "", "STO"]


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "ab")])
def test_a_stop_token_gives_text_only_when_asked(tokenizer: Tokenizer, include: bool, text: str) -> None:
    ids = tokenizer.encode("ab")
    deltas = [TokenDelta("r", 0, ids, finish_reason=FinishReason.STOP, stop_token_id=ids[1])]
    shown = assemble(tokenizer, deltas, stop_token_ids=(ids[1],), include_stop_str_in_output=include)
    assert (shown[0].text, shown[0].stop_reason, list(shown[0].token_ids)) == (text, ids[1], ids)


def test_an_end_of_sequence_token_is_no_stop_reason(tokenizer: Tokenizer) -> None:
    end = tokenizer.eos_token_id
    assert end is not None
    deltas = [TokenDelta("r", 0, [end], finish_reason=FinishReason.STOP, stop_token_id=end)]
    shown = assemble(tokenizer, deltas, skip_special_tokens=False)
    assert (shown[0].text, shown[0].stop_reason, shown[0].finish_reason) == ("", None, FinishReason.STOP)


def test_min_tokens_holds_for_stop_strings_too(tokenizer: Tokenizer) -> None:
    shown = assemble(tokenizer, one_by_one(tokenizer.encode("a.b.c")), stop=(".",), min_tokens=3)
    assert "".join(delta.text for delta in shown) == "a.b"
    assert shown[-1].stop_at == 4


def test_deltas_of_one_choice_are_joined_and_those_of_others_are_left_alone() -> None:
    entries = [TokenLogprobs(token, -0.5, 1, []) for token in range(3)]
    prompt = [None, TokenLogprobs(9, -1.0, 2, [])]
    first = ChoiceDelta(1, "a", [0], entries[:1], None, None, None, cached_tokens=4, prompt_logprobs=prompt)
    other = ChoiceDelta(0, "x", [8], None, None, None, None)
    then = ChoiceDelta(1, "bc", [1, 2], entries[1:], None, None, None)
    end = ChoiceDelta(1, "d", [], None, FinishReason.STOP, "STOP", 3)
    assert join_deltas([first, other, then, end]) == [
        ChoiceDelta(1, "abcd", [0, 1, 2], entries, FinishReason.STOP, "STOP", 3, None, 4, prompt), other,
    ]  # fmt: skip
    late = then._replace(prompt_logprobs=prompt)
    assert join_deltas([other, other._replace(text="y"), late]) == [other._replace(text="xy", token_ids=[8, 8]), late]
    assert join_deltas([]) == []
