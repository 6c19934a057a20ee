"""From a structural tag to a grammar in llguidance's Lark: free text up to a trigger, then a tag."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxinfer.structural_tag import Node

SpecialIds = Mapping[str, int]
"""Added tokens that llguidance takes for no text, by how they are written."""


class TagsWriter:
    """Writes rules for one structural tag.

    special_ids: where a string of the tag has one of these, its letters and its id are both legal; free text has their
    letters alone. json: a schema, what may stand between its tokens, and the field that it came from, as llguidance has
    it. regex: a pattern between slashes. grammar: one in Lark, of one in Lark or GBNF and the field that it came from.
    has_letters: whether a terminal that was written has the letters of such a token, and no other way has its id.
    """

    def __init__(
        self,
        special_ids: SpecialIds,
        json: Callable[[Any, str | None, str], str],
        regex: Callable[[str], str],
        grammar: Callable[[str, str], str],
    ):
        self._special_ids = special_ids
        self._json, self._regex, self._grammar = json, regex, grammar
        self._special = re.compile("|".join(map(re.escape, sorted(special_ids, key=len, reverse=True))) or r"(?!)")
        self._lines = ["%llguidance {}", "ANY: /(?s:.*)/"]
        self._grammars: list[dict[str, str]] = []
        self.has_letters = False

    def write(self, node: Node) -> str:
        """The grammar: Lark, or a list of several as JSON where the node has grammars inside."""
        self._lines.insert(1, f"start: {self._expression(node)}")
        text = "\n".join(self._lines) + "\n"
        if not self._grammars:
            return text
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": text}, *self._grammars]})

    def _expression(self, node: Node) -> str:
        return _WRITERS[node["type"]](self, node)

    def _const(self, node: Node) -> str:
        return self._letters(node["value"])

    def _schema(self, node: Node) -> str:
        return self._named("j", f"%json {self._json(node['json_schema'], node.get('whitespace'), node['param'])}")

    def _pattern(self, node: Node) -> str:
        return self._terminal(self._matching(node))

    def _inner_grammar(self, node: Node) -> str:
        name = f"g{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": self._grammar(node["grammar"], node["param"])})
        return f"@{name}"

    def _any_text(self, node: Node) -> str:
        return self._terminal(_containing_none(node["excludes"]))

    def _sequence(self, node: Node) -> str:
        """Neighbours of a regex become one terminal with it, which may end wherever what follows it can begin."""
        found, run = [], list[Node]()
        for each in (*node["elements"], None):
            if each is not None and each["type"] in ("regex", "const_string"):
                run.append(each)
                continue
            found += self._run(run)
            run = []
            if each is not None:
                found.append(self._expression(each))
        return f"({' '.join(found)})"

    def _run(self, run: list[Node]) -> list[str]:
        if len(run) < 2 or all(each["type"] == "const_string" for each in run):
            return [self._expression(each) for each in run]
        return [self._terminal(" ".join(self._matching(each) for each in run))]

    def _matching(self, node: Node) -> str:
        """Inside of a terminal."""
        if node["type"] == "const_string":
            self.has_letters |= self._special.search(node["value"]) is not None
            return _quoted(node["value"])
        found = f"({self._regex(node['pattern'])})"
        return f"({found} & {_containing_none(node['excludes'])})" if node.get("excludes") else found

    def _or(self, node: Node) -> str:
        return f"({' | '.join(self._expression(each) for each in node['elements'])})"

    def _tag(self, node: Node) -> str:
        return self._named("tag", f"{self._letters(node['begin'])} {self._to_its_end(node)}")

    def _to_its_end(self, tag: Node) -> str:
        """Return the expression of a tag, without its beginning: free text and a regex's match end at the first
        `end`."""
        content, end = tag["content"], tag["end"]
        if end and content["type"] == "any_text":
            return self._until(_containing_none([end, *content["excludes"]]), end)
        if end and content["type"] == "regex":
            return self._until(self._matching(content), end)
        return f"{self._expression(content)} {self._letters(end)}".strip()

    def _until(self, terminal: str, end: str) -> str:
        """Return an expression for a terminal's match up to the first `end`, by letters or, if that begins with a
        special token, by an id."""
        token = self._special.match(end)
        self.has_letters |= self._special.search(end, token.end() if token else 0) is not None
        ways = [self._named("until", self._terminal(f"{terminal} {_quoted(end)}"), "[lazy]")]
        if token:
            rest = self._letters(end[token.end() :])
            ways.append(f"{self._terminal(terminal)} <[{self._special_ids[token[0]]}]> {rest}".strip())
        return f"({' | '.join(ways)})"

    def _triggered(self, node: Node) -> str:
        free, parts = _containing_none([*node["triggers"], *node["excludes"]]), list[str]()
        for trigger in node["triggers"]:
            head = self._until(free, trigger)
            tags = [tag for tag in node["tags"] if tag["begin"].startswith(trigger)]
            rests = [f"{self._letters(tag['begin'][len(trigger) :])} {self._to_its_end(tag)}".strip() for tag in tags]
            parts.append(f"{head} ({' | '.join(self._named('tag', rest) for rest in rests)})")
        part = self._named("part", " | ".join(parts))
        if node["stop_after_first"]:
            return part if node["at_least_one"] else f"({part} | {self._terminal(free)})"
        return f"({part}{'+' if node['at_least_one'] else '*'} {self._terminal(free)})"

    def _separated(self, node: Node) -> str:
        part = self._named("part", " | ".join(self._tag(tag) for tag in node["tags"]))
        separated = f"{self._letters(node['separator'])} {part}".strip()
        parts = part if node["stop_after_first"] else f"{part} ({separated})*"
        return f"({parts})" if node["at_least_one"] else f"({parts})?"

    def _letters(self, text: str) -> str:
        """A string, in which added tokens may be ids; empty where it is."""
        found, at = [], 0
        for token in self._special.finditer(text):
            if token.start() > at:
                found.append(_quoted(text[at : token.start()]))
            found.append(f"({_quoted(token[0])} | <[{self._special_ids[token[0]]}]>)")
            at = token.end()
        return " ".join([*found, *([_quoted(text[at:])] if at < len(text) else [])])

    def _named(self, name: str, body: str, options: str = "") -> str:
        name = f"{name}{len(self._lines)}"
        self._lines.append(f"{name}{options}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        return self._named("T", body)


_WRITERS: dict[str, Callable[[TagsWriter, Node], str]] = {
    "const_string": TagsWriter._const,
    "json_schema": TagsWriter._schema,
    "regex": TagsWriter._pattern,
    "grammar": TagsWriter._inner_grammar,
    "any_text": TagsWriter._any_text,
    "sequence": TagsWriter._sequence,
    "or": TagsWriter._or,
    "tag": TagsWriter._tag,
    "triggered_tags": TagsWriter._triggered,
    "tags_with_separator": TagsWriter._separated,
}


def _quoted(text: str) -> str:
    """A string as Lark has it."""
    return json.dumps(text).replace("\x7f", "\\u007f")


def _containing_none(strings: list[str]) -> str:
    """Text that contains none of them, inside of a terminal."""
    if not strings:
        return "ANY"
    return f"(ANY & ~(ANY ({' | '.join(map(_quoted, strings))}) ANY))"
