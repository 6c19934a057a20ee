"""Topics of conversations, and their frequencies."""

from collections.abc import Callable
from random import Random
from typing import Literal

from demo_data import arithmetic, counting, facts, lists, memory, objects, stories, talk, tools
from demo_data.question import Question
from demo_data.split import Split, split_of

Topic = Callable[[Random, bool], Question]

PLAIN: dict[Topic, float] = {
    arithmetic.addition: 12,
    arithmetic.subtraction: 24,
    arithmetic.multiplication: 12,
    counting.counting: 7,
    lists.sort_words: 8,
    lists.sort_numbers: 8,
    lists.reverse_words: 4,
    lists.reverse_digits: 3,
    facts.capital_of: 10,
    facts.opposite: 13,
    facts.colour: 1,
    facts.unit: 1.5,
    stories.story: 2.5,
    stories.simple_story: 0.5,
    objects.json_object: 6,
    talk.greeting: 1,
    talk.about: 12,
    talk.small_talk: 8,
    talk.unknown: 2.5,
    talk.repeat: 6,
    memory.memory: 1.5,
}
"""Topics without tools, with their shares."""

_NEEDS_NO_TOOL: tuple[Topic, ...] = (
    facts.capital_of, facts.opposite, facts.colour, facts.unit, lists.reverse_words, lists.sort_words,
    lists.sort_numbers,
    talk.greeting, talk.about, talk.repeat, objects.json_object,
)  # fmt: skip


def no_tool(rng: Random, think: bool) -> Question:
    """A question of another topic, in a conversation with tools."""
    return tools.no_tool(rng, think, rng.choice(_NEEDS_NO_TOOL))


WITH_TOOLS: dict[Topic, float] = {tools.tool_call: 12, tools.tool_answer: 5, no_tool: 5}
"""Topics with tools, with their shares."""

NOT_JUDGED = (stories.simple_story, talk.unknown)
"""Topics that have no right answer, or none that can be held out."""


def draw(rng: Random, topic: Topic, think: bool, split: Split | Literal["any"]) -> Question:
    """A question of `topic` whose content is of `split`."""
    while True:
        question = topic(rng, think)
        if split == "any" or split_of(question.content) == split:
            return question
