"""Grammars on random walks: what is written is re-read by `re`, `lark` and a list; ends, thoughts, what is kept."""

import random
import re
import shutil
import string
from dataclasses import replace
from pathlib import Path
from typing import Literal

import lark
import pytest

from jaxinfer.constraint import MAX_CHOICES, MAX_DEPTH, Constraint
from jaxinfer.engine.constraint import ConstraintStats, MatcherError
from jaxinfer.errors import ParameterError
from jaxinfer.grammar.grammars import Grammars
from jaxinfer.grammar.trial import Trial
from jaxinfer.sampling import SamplingParams
from tests.grammar.walks import END, FILE, SIZE, TOKENIZER, compiled, legal, walk

GRAMMARS = Grammars(FILE, SIZE, (END,))

COUNTS = ("{1,4}", "{3,9}")
NUMBERS = (r"\d+", r"-?\d{1,3}(\.\d{1,2})?", r"[1-9]\d?")
UNITS = ("", " km", "%", "(st|nd|th)")
REGEXES = (
    *(f"[{letters}]{count}" for letters in ("a-z", "0-9", "A-F0-9", "aeiou ") for count in COUNTS),
    *(f"{number}{unit}" for number in NUMBERS for unit in UNITS),
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])",
    r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?",
    r"\(\d{3}\) \d{3}-\d{4}",
    r"(yes|no|maybe)",
    r"[a-z]{1,9}@[a-z]{1,9}\.(com|org)",
    r"https?://[a-z]{2,8}(\.[a-z]{2,3}){1,2}(/[a-z]*)*",
    r"#[0-9a-f]{6}",
    r"v\d+\.\d+\.\d+(-rc\d)?",
    r"([A-Z][a-z]{1,8} )?[A-Z][a-z]{1,8}",
    r"(a|b)*abb",
    r"x{0,3}y{2}z+",
    r"\$\d{1,3}(,\d{3})*\.\d{2}",
    r"[IVX]{1,5}",
    r"true|false|null",
    r"\"[a-z ]*\"",
    r"\[(\d(, \d)*)?\]",
    r"[ACGT]{3,12}",
    r"é[à-ü]{1,4}",
    r"(\w+ ){2,4}end",
    r"[^a-z\n]{2,5}",
    r"a.c",
    r"(foo|bar)(foo|bar)?",
    r"\d+ (apples|pears) and \d+ (plums|figs)",
    r"(0|1)+b",
    r"[a-zA-Z_][a-zA-Z0-9_]{0,7}\(\)",
    r"-{3}\n[a-z]+\n-{3}",
    r"(ab){2,3}",
    r"\+\d{1,2}( \d{2,3}){2,4}",
    r"[★☆]{5}",
    r"日本(語|人)",
)
WORDS = ("red", "green", "blue", "Paris", "New York", "naïve", "42", "a b c", "日本", "x\ny")


PATTERNS = (
    'start: term (OP term)*\nterm: NUMBER | "(" start ")"\nOP: "+" | "*"\nNUMBER: /[0-9]{1,3}/ | "WORD"\n',
    'start: "[" (item ("," item)*)? "]"\nitem: "WORD" | /[a-c]/\n',
    'start: "<t>" body "</t>"\nbody: ("WORD" | /[xyz]/ | start)*\n',
    'start: "{" pair ("," pair)* "}"\npair: KEY ":" value\nKEY: /[a-z]{1,3}/\nvalue: "WORD" | start\n',
    'start: who " " ("sees" | "hears") " " whom "."\nwho: "he" | "WORD"\nwhom: who | /[a-z]{2,5}/\n',
)


def lark_grammars() -> list[str]:
    """Fifty: sums, lists, tagged texts, objects and sentences, each of several words."""
    return [pattern.replace("WORD", word.replace("\n", " ")) for word in WORDS for pattern in PATTERNS]


def id_of(text: str) -> int:
    found = TOKENIZER.token_to_id(text)
    assert found is not None
    return found


def written(constraint: Constraint, seed: int, most: int = 80) -> str | None:
    """None where the walk did not end in time."""
    ids = walk(GRAMMARS, compiled(GRAMMARS, constraint), SIZE, random.Random(seed), most)
    return GRAMMARS._tokenizer.decode_str(ids) if ids else None


def test_there_are_fifty_of_each() -> None:
    assert len(set(REGEXES)) >= 50
    assert len(lark_grammars()) == 50


@pytest.mark.parametrize("regex", REGEXES)
def test_regexes(regex: str) -> None:
    texts = [written(Constraint.text("regex", regex, "it"), seed) for seed in range(8)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        assert re.fullmatch(regex, text), text


def test_digits_are_ascii() -> None:
    """In classes, too; what follows an escaped backslash is a letter."""
    for regex, text in ((r"[\d.]{2}\\d", r"1.\d"), (r"\d[^\d]", "1a"), (r"[a\]\d]{2}", "]1")):
        matcher = compiled(GRAMMARS, Constraint.text("regex", regex, "it"))
        matcher.accept(GRAMMARS._tokenizer.tokenize_str(text))
        assert matcher.ended
    digits = legal(GRAMMARS, compiled(GRAMMARS, Constraint.text("regex", r"\d", "it")), SIZE)
    assert {GRAMMARS._tokenizer.decode_str([token]) for token in digits} == set("0123456789")


def test_choices() -> None:
    draw = random.Random(0)
    for number in range(50):
        choices = [*draw.sample(WORDS, draw.randint(1, 6)), "".join(draw.choices(string.printable, k=number % 9 + 1))]
        found = {written(Constraint.choice(choices, "it"), seed) for seed in range(6)}
        assert found <= set(choices)


@pytest.mark.parametrize("number", range(50))
def test_lark_grammars(number: int) -> None:
    grammar = lark_grammars()[number]
    parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")
    ended = [
        text for seed in range(6) if (text := written(Constraint.text("grammar", grammar, "it"), seed)) is not None
    ]
    assert ended
    for text in ended:
        parser.parse(text)


def test_gbnf_is_read() -> None:
    gbnf = 'root ::= "the " noun " is " ("red" | "blue")\nnoun ::= [a-z] [a-z]?\n'
    assert re.fullmatch(r"the [a-z]+ is (red|blue)", written(Constraint.text("grammar", gbnf, "it"), 3) or "")


def test_it_may_end_with_every_stop_id_and_only_where_the_grammar_ends() -> None:
    letter = id_of("b")
    stops = frozenset({END, 5, letter})
    matcher = compiled(GRAMMARS, Constraint.text("regex", "ab?c*", "it"), stops)
    assert not stops & set(legal(GRAMMARS, matcher, SIZE))
    matcher.accept([id_of("a")])
    assert stops <= set(legal(GRAMMARS, matcher, SIZE))
    assert not matcher.ended


def test_where_nothing_ends_the_text_the_models_own_end_is_not_legal() -> None:
    matcher = compiled(GRAMMARS, Constraint.text("regex", "a+", "it"), frozenset())
    matcher.accept([id_of("a")])
    assert END not in legal(GRAMMARS, matcher, SIZE)


@pytest.mark.parametrize("written", ["its own token", "letters", "pieces"])
def test_a_thought_is_free_and_then_the_grammar_begins(written: str) -> None:
    """However its end is written: whoever takes the answer apart reads letters."""
    begin, constraint = id_of("<think>"), Constraint.text("regex", "a+", "it")
    end = {"its own token": [id_of("</think>")], "letters": list(map(id_of, "</think>")), "pieces": [
        id_of("<"), id_of("/"), id_of("th"), id_of("in"), id_of("k"), id_of(">")]}[written]  # fmt: skip
    letter, other = id_of("a"), id_of("b")
    opened = compiled(GRAMMARS, constraint.after_thought("</think>", None))
    assert legal(GRAMMARS, opened, SIZE) == [token for token in range(SIZE) if token != END]
    opened.accept([other, *end[:-1], other, *end[:-1]])
    copied = opened.copy()
    opened.accept(end[-1:])
    assert letter in legal(GRAMMARS, opened, SIZE)
    assert other not in legal(GRAMMARS, opened, SIZE)
    copied.accept([other])
    assert other in legal(GRAMMARS, copied, SIZE)
    may = compiled(GRAMMARS, constraint.after_thought("</think>", begin))
    assert {begin, letter} <= set(legal(GRAMMARS, may, SIZE))
    assert other not in legal(GRAMMARS, may, SIZE)
    spoke, thinks = may.copy(), may.copy()
    spoke.accept([letter])
    assert begin not in legal(GRAMMARS, spoke, SIZE)
    thinks.accept([begin, other, *end, letter])
    assert other not in legal(GRAMMARS, thinks, SIZE)


def test_the_token_that_ends_a_thought_says_no_more() -> None:
    """Nor do control tokens, which an answer does not show, part its letters."""
    matcher = compiled(GRAMMARS, Constraint.text("regex", "a+", "it").after_thought("</think>", None))
    longer, control = id_of("><|"), id_of("<|im_start|>")
    assert {longer, control} <= set(legal(GRAMMARS, matcher, SIZE))
    matcher.accept(list(map(id_of, "</think")))
    banned = set(range(SIZE)) - set(legal(GRAMMARS, matcher, SIZE))
    assert {longer, control} <= banned
    assert not {id_of(">"), id_of("a"), id_of("</think>")} & banned
    matcher.accept([id_of("a")])
    assert {longer, control} <= set(legal(GRAMMARS, matcher, SIZE))


def test_what_does_not_follow_is_an_error_of_its_matcher() -> None:
    matcher = compiled(GRAMMARS, Constraint.text("regex", "a+", "it"))
    with pytest.raises(MatcherError, match="the grammar cannot go on: "):
        matcher.accept([id_of("b")])


def test_copies_go_their_own_ways() -> None:
    matcher = compiled(GRAMMARS, Constraint.text("regex", "ab|cd", "it"))
    other = matcher.copy()
    matcher.accept([id_of("a")])
    assert id_of("c") in legal(GRAMMARS, other, SIZE)
    assert id_of("c") not in legal(GRAMMARS, matcher, SIZE)


def test_grammars_are_kept_by_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, made = Grammars(FILE, SIZE, (END,)), []
    monkeypatch.setattr(grammars, "_compiled", lambda one, make=grammars._compiled: made.append(one) or make(one))
    for _ in range(3):
        compiled(grammars, Constraint.text("regex", "a+", "here"))
        compiled(grammars, Constraint.text("regex", "a+", "there").after_thought("</b>", 4))
    assert len(made) == 1
    for number in range(300):
        compiled(grammars, Constraint.text("regex", f"a{{{number}}}b", "it"))
    assert len(grammars._kept) == 256


def test_what_is_compiled_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = Grammars(FILE, SIZE, (END,))
    assert grammars.stats() == ConstraintStats()
    for regex in ("a+", "b+", "a+", "a+"):
        compiled(grammars, Constraint.text("regex", regex, "it"))
    for _ in range(2):
        with pytest.raises(ParameterError):
            compiled(grammars, Constraint.text("regex", "(", "it"))
    stats = grammars.stats()
    assert (stats.grammars_cached, stats.grammars_compiled, stats.grammars_refused) == (2, 2, 2)
    assert (stats.grammars_kept, stats.grammar_bytes) == (2, sum(kept.bytes for kept in grammars._kept.values()))
    assert 0 < stats.grammar_seconds < 60
    monkeypatch.setattr(Trial, "run", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compiled(grammars, Constraint.text("regex", "c+", "it"))
    later = grammars.stats()
    assert later == replace(stats, grammar_seconds=later.grammar_seconds)
    assert later.grammar_seconds > stats.grammar_seconds
    grammars.close()


BYTES = [token for token in range(SIZE) if len(TOKENIZER.id_to_token(token) or "") == 1]
"""Tokens of one byte each."""
OBJECT = {"type": "object", "properties": {"name": {"enum": ["start", "assistant"]}}, "required": ["name"]}
SPELT: dict[str, tuple[Constraint, str]] = {
    "regex": (Constraint.text("regex", "assistant|user", "x"), "assistant|user"),
    "choice": (Constraint.choice(["New York", "the user"], "x"), "New York|the user"),
    "schema": (Constraint.schema(OBJECT, "x"), r'\{\s*"name"\s*:\s*"(start|assistant)"(.|\n)*\}'),
    "lark": (Constraint.text("grammar", 'start: "start" | "assistant"', "x"), "start|assistant"),
    "own options": (Constraint.text("grammar", '%llguidance {}\nstart: "assistant"', "x"), "assistant"),
    "gbnf": (Constraint.text("grammar", 'root ::= "start" | "assistant"', "x"), "start|assistant"),
}


@pytest.mark.parametrize("name", SPELT)
def test_beside_rules_a_text_may_be_written_in_any_tokens(name: str) -> None:
    """Byte by byte, if rules forbid all else: what must follow is not the tokenizer's own tokens alone."""
    constraint, pattern = SPELT[name]
    for seed in range(5):
        params = SamplingParams(structured_outputs=constraint, allowed_token_ids=BYTES)
        matcher, draw, ids = GRAMMARS.compile(params, frozenset({END})), random.Random(seed), list[int]()
        while not matcher.ended and len(ids) < 200:
            own = [token for token in legal(GRAMMARS, matcher, SIZE) if token in BYTES]
            if not own:
                break
            ids.append(draw.choice(own))
            matcher.accept(ids[-1:])
        if len(ids) < 200:
            assert re.fullmatch(pattern, GRAMMARS._tokenizer.decode_str(ids))
    assert not all(token in BYTES for token in walked(constraint))


def walked(constraint: Constraint) -> list[int]:
    """Without rules."""
    return [
        id for seed in range(9) for id in walk(GRAMMARS, compiled(GRAMMARS, constraint), SIZE, random.Random(seed), 80)
    ]


def schema(value: object) -> Constraint:
    return Constraint.schema(value, "x")


def refused(kind: Literal["regex", "grammar"], text: str) -> object:
    return compiled(GRAMMARS, Constraint.text(kind, text, "x"))


LONG = {"description": "a" * (1 << 18)}
REFUSED = {
    "no JSON": (lambda: schema("{"), "x: is not JSON"),
    "a list": (lambda: schema([1]), "x: must be a JSON Schema: an object or a boolean, not list"),
    "false": (lambda: schema(False), "x: is false, which no text is"),
    "recursion": (lambda: schema('{"a":' * 2000 + "1" + "}" * 2000), "x: "),
    "much": (lambda: schema(LONG), "x: has 262,163 characters; at most 262,144"),
    "no choice": (lambda: Constraint.choice([], "x"), f"x: must be a list of 1 to {MAX_CHOICES:,} strings"),
    "a number": (lambda: Constraint.choice(["a", 1], "x"), "x: each must be a string that is not empty"),
    "one text": (lambda: Constraint.choice("ab", "x"), "x: must be a list"),
    "nothing": (lambda: Constraint.text("regex", "", "x"), "x: must be a string that is not empty"),
    "an open group": (lambda: refused("regex", "(a"), "x: this regex is refused: "),
    "an unknown rule": (lambda: refused("grammar", "start: a"), "x: this grammar is refused: "),
    "half a rule": (lambda: refused("grammar", "root ::= ("), "x: "),
    "too deep": (lambda: refused("regex", "(" * 1000 + "a" + ")" * 1000), "x: this regex is refused"),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(make, words: str) -> None:
    with pytest.raises(ParameterError) as error:
        make()
    assert str(error.value).startswith(words)


def test_depth_is_bounded_without_recursion() -> None:
    deep: object = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"items": deep}
    with pytest.raises(ParameterError, match=f"is nested deeper than {MAX_DEPTH}"):
        Constraint.schema(deep, "x")


def test_the_tokenizer_is_read_once_and_never_within_a_step(tmp_path: Path) -> None:
    """Reading one takes the interpreter for some tenths of a second."""
    file = Path(shutil.copy(FILE, tmp_path))
    grammars = Grammars(file, SIZE, (END,))
    compiled(grammars, Constraint.text("regex", "a+"))
    file.unlink()
    tag = {"type": "tag", "begin": "<tool_call>", "content": {"type": "any_text"}, "end": "</tool_call>"}
    for constraint in (Constraint.text("regex", "b+"), Constraint.structural_tag({"format": tag})):
        matcher = compiled(grammars, constraint.after_thought("</think>", None))
        assert len(legal(grammars, matcher, SIZE)) > 100


def test_what_is_kept_is_known_before_it_is_asked_for() -> None:
    grammars, ends = Grammars(FILE, SIZE, (END,)), frozenset({END})
    params = SamplingParams(structured_outputs=Constraint.text("regex", "a+"))
    assert not grammars.is_kept(params, ends)
    grammars.compile(params, ends)
    assert grammars.is_kept(params, ends)
    constraint = params.constraint
    assert constraint is not None
    for other in (Constraint.text("regex", "b+"), constraint.after_thought("</think>", None)):
        assert not grammars.is_kept(SamplingParams(structured_outputs=other), ends)
    assert not grammars.is_kept(SamplingParams(structured_outputs=constraint, allowed_token_ids=[300, 301]), ends)
