"""`allowed_token_ids` and bad words on the simulated device, against a model of the rules; histories have them too."""

from typing import Any

import numpy as np
import pytest

from jaxinfer.engine.core import EngineCore
from jaxinfer.engine.token_rules import RuledMatcher, TokenRules
from jaxinfer.engine.types import FinishReason, GenerateRequest
from jaxinfer.errors import ParameterError
from jaxinfer.sampling import SamplingParams
from tests.engine.rules_model import FEW, RULES, kept
from tests.engine.small import (
    VOCABULARY,
    RecordingRunner,
    ask,
    right,
    run,
    small_core,
    small_shapes,
    tokens_of,
)
from tests.engine.toy_grammar import Toy, ToyConstraints

TOY = Toy(5, 40, forces=False).constraint


def ruled(name: str, rules: str, tokens: int = 24, **changes: Any) -> GenerateRequest:
    return ask(name, 5, tokens, **RULES[rules], **changes)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("rules", RULES)
def test_rules_alone_need_no_constraints(rules: str, ahead: int) -> None:
    core = small_core(ahead=ahead)
    for number in range(3):
        core.add_request(ruled(f"r{number}", rules, seed=number, n=2))
    core.add_request(ask("free", 7, 12))
    got = run(core)
    for number in range(3):
        for index in range(2):
            expected = right(core, ruled(f"r{number}", rules, seed=number, n=2), index)
            assert tokens_of(got[f"r{number}", index]) == expected
            ends = FinishReason.LENGTH if len(expected) == 24 else FinishReason.ERROR
            assert got[f"r{number}", index][-1].finish_reason is ends
    assert tokens_of(got["free", 0]) == right(core, ask("free", 7, 12))


@pytest.mark.parametrize("rules", RULES)
def test_a_matcher_of_rules_is_the_model_of_them(rules: str) -> None:
    """After random outputs, legal or not; a copy goes its own way."""
    rng, stops = np.random.default_rng(5), frozenset({7, 20})
    params = SamplingParams(max_tokens=None, min_tokens=4, **RULES[rules])
    for _ in range(40):
        matcher, outputs = RuledMatcher(TokenRules(params, stops, VOCABULARY)), list[int]()
        for _ in range(12):
            # Of no rules at all the sampler bans stop ids itself: there is no such matcher.
            if rules != "none":
                assert allowed(matcher) == kept(params, range(VOCABULARY), outputs, stops)
            some = rng.choice(FEW, rng.integers(1, 3)).tolist()
            matcher.copy().accept([3, 11, 12, 12])
            matcher.accept(some)
            outputs += some


def allowed(matcher: RuledMatcher) -> list[int]:
    row = np.full(2, -1, np.int32)
    matcher.restrict(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def core_beside(runner: RecordingRunner | None = None, **options: Any) -> EngineCore:
    return small_core(runner, constraints=ToyConstraints(VOCABULARY), **options)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("rules", ["few", "bad", "dead ends"])
def test_rules_beside_a_grammar(rules: str, ahead: int) -> None:
    """And beside rows that have one of them, or neither. Where both leave nothing, the request ends with its error."""
    core, ends = core_beside(ahead=ahead), set[FinishReason | None]()
    for seed in range(8):
        core.add_request(ruled(f"g{seed}", rules, seed=seed, structured_outputs=TOY))
        core.add_request(ruled(f"r{seed}", rules, seed=seed))
        core.add_request(ask(f"t{seed}", 4, structured_outputs=TOY))
        core.add_request(ask(f"f{seed}", 4))
    got = run(core)
    for seed in range(8):
        expected = right(core, ruled(f"g{seed}", rules, seed=seed, structured_outputs=TOY))
        last = got[f"g{seed}", 0][-1]
        ends.add(last.finish_reason)
        assert tokens_of(got[f"g{seed}", 0]) == expected
        assert (last.finish_reason is FinishReason.ERROR) == (len(expected) < 24)
        assert tokens_of(got[f"r{seed}", 0]) == right(core, ruled(f"r{seed}", rules, seed=seed))
        assert tokens_of(got[f"t{seed}", 0]) == right(core, ask(f"t{seed}", 4, structured_outputs=TOY))
        assert tokens_of(got[f"f{seed}", 0]) == right(core, ask(f"f{seed}", 4))
    assert (FinishReason.ERROR in ends) == (rules == "dead ends")


def test_sequences_of_a_request_go_their_own_ways_in_both() -> None:
    core, request = core_beside(), ruled("a", "bad", structured_outputs=TOY, n=3)
    core.add_request(request)
    got = run(core)
    found = [tokens_of(got["a", index]) for index in range(3)]
    assert found == [right(core, request, index) for index in range(3)]
    assert len({*map(tuple, found)}) == 3


def test_a_grammar_that_fails_ends_its_request_alone() -> None:
    core = small_core(constraints=ToyConstraints(VOCABULARY, frozenset({4})))
    core.add_request(ruled("a", "few"))
    core.add_request(ruled("b", "bad", structured_outputs=TOY))
    core.add_request(ruled("c", "bad"))
    got = run(core)
    assert (got["b", 0][-1].error, len(tokens_of(got["b", 0]))) == ("the toy is broken", 4)
    for name, rules in (("a", "few"), ("c", "bad")):
        assert tokens_of(got[name, 0]) == right(core, ruled(name, rules))


def test_an_error_names_the_fields_that_leave_nothing() -> None:
    core = core_beside(eos=(7,))
    core.add_request(ask("both", 5, allowed_token_ids=[11], structured_outputs=TOY))
    core.add_request(ask("early", 5, allowed_token_ids=[7], min_tokens=2))
    core.add_request(ask("words", 5, allowed_token_ids=[5, 6], bad_words=["x"], bad_token_ids=[[5, 5], [5, 6], [6]]))
    got = run(core)
    said = "no token is left that may be drawn next, by "
    assert got["both", 0][-1].error == f"{said}allowed_token_ids and structured_outputs"
    assert got["early", 0][-1].error == f"{said}allowed_token_ids and min_tokens"
    assert got["words", 0][-1].error == f"{said}allowed_token_ids and bad_words"
    assert tokens_of(got["words", 0]) == [5]
    assert {got[name, 0][-1].param for name in ("both", "early", "words")} == {"allowed_token_ids"}


def test_stop_ids_are_drawn_only_where_they_are_allowed() -> None:
    """Without 7, which ends a text, it goes on to its length; a grammar's end is no exception."""
    core = core_beside(eos=(7,))
    core.add_request(ask("no end", 5, 30, allowed_token_ids=[3, 4, 5]))
    core.add_request(ask("an end", 5, 30, allowed_token_ids=[3, 7], min_tokens=4))
    core.add_request(ask("banned", 5, 30, bad_token_ids=[[7]], structured_outputs=Toy(2, 30).constraint))
    got = run(core)
    assert got["no end", 0][-1].finish_reason is FinishReason.LENGTH
    last = got["an end", 0][-1]
    assert (last.finish_reason, last.stop_token_id) == (FinishReason.STOP, 7)
    assert tokens_of(got["an end", 0])[:4] == [3] * 4
    assert (got["banned", 0][-1].finish_reason, len(tokens_of(got["banned", 0]))) == (FinishReason.STOP, 30)
    assert 7 not in tokens_of(got["banned", 0])


def test_a_mask_that_never_changes_is_sent_once() -> None:
    runner = RecordingRunner(small_shapes())
    core = small_core(runner)
    core.add_request(ruled("a", "few"))
    assert len(tokens_of(run(core)["a", 0])) == 24
    assert len(runner.masks) == 1


def test_multi_step_decode_gives_way() -> None:
    runner = RecordingRunner(small_shapes(decode_steps=4))
    core = small_core(runner)
    core.add_request(ruled("a", "both"))
    assert tokens_of(run(core)["a", 0]) == right(core, ruled("a", "both"))
    assert all(plan.samples.max(initial=0) <= 1 for plan in runner.plans)


@pytest.mark.parametrize(
    ("field", "given", "said"),
    [
        ("allowed_token_ids", {"allowed_token_ids": [VOCABULARY]}, "61 is not below the vocabulary's size, 61"),
        ("allowed_token_ids", {"allowed_token_ids": [1] * 62}, "has 62 ids, and the vocabulary 61"),
        ("bad_words", {"bad_words": ["x"], "bad_token_ids": [[1, 61]]}, "61 is not below"),
        ("bad_token_ids", {"bad_token_ids": [[61]]}, "61 is not below"),
        ("bad_words", {"bad_words": ["x"]}, "no tokenizer"),
        ("bad_words", {"allowed_token_ids": [5], "bad_words": ["x"], "bad_token_ids": [[5]]}, "allowed_token_ids and"),
    ],
)
def test_what_can_never_be_served_is_refused(field: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError, match=said) as error:
        small_core().add_request(ask("a", 5, **given))
    assert error.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("allowed_token_ids", [-1]), ("allowed_token_ids", [True]), ("allowed_token_ids", [1.5]),
        ("allowed_token_ids", ["a"]), ("allowed_token_ids", [2**31]), ("bad_words", ["x"] * 129), ("bad_words", [""]),
        ("bad_words", [" \n"]), ("bad_words", ["x" * 257]), ("bad_words", [5]), ("bad_token_ids", [[]]),
        ("bad_token_ids", [[1]] * 257), ("bad_token_ids", [[1] * 2049]), ("bad_token_ids", [[-1]]),
    ],
)  # fmt: skip
def test_parameters_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ParameterError) as error:
        SamplingParams(**{field: value})
    assert error.value.param == field
