"""The held-out questions: contents, or wordings, that training never sees."""

from random import Random

from demo_data import arithmetic, counting, facts, lists, memory, objects, stories, talk, tools
from demo_data.question import Question
from demo_data.split import Split
from demo_data.topics import Topic, draw, no_tool

QUOTAS: dict[Topic, int] = {
    arithmetic.addition: 140,
    arithmetic.subtraction: 140,
    arithmetic.multiplication: 40,
    counting.counting: 110,
    lists.sort_words: 120,
    lists.sort_numbers: 120,
    lists.reverse_words: 100,
    lists.reverse_digits: 100,
    facts.capital_of: 110,
    facts.opposite: 130,
    facts.colour: 50,
    facts.unit: 40,
    stories.story: 120,
    objects.json_object: 140,
    talk.greeting: 12,
    talk.about: 58,
    talk.small_talk: 30,
    talk.repeat: 50,
    memory.memory: 50,
    tools.tool_call: 200,
    tools.tool_answer: 70,
    no_tool: 70,
}
"""Number of the 2,000 questions that each topic gets; one in four asks for thinking."""

_TRIES = 200


def held_out(count: int = 2000, seed: int = 0, split: Split = "test") -> list[Question]:
    """About `count` different questions, in the shares of QUOTAS; 2,000 are 2,000. The same arguments give the same."""
    rng, total = Random(f"evaluation/{seed}/{split}"), sum(QUOTAS.values())
    questions: list[Question] = []
    for topic, quota in QUOTAS.items():
        seen: set[tuple[object, ...]] = set()
        wanted = max(1, round(quota * count / total))
        for i in range(wanted):
            questions.append(_new(rng, topic, i % 4 == 3, split, seen))
    return questions


def _new(rng: Random, topic: Topic, think: bool, split: Split, seen: set[tuple[object, ...]]) -> Question:
    """A question whose words were not asked before; of facts, as long as there are any, one not asked before."""
    for attempt in range(_TRIES):
        question = draw(rng, topic, think, split)
        content = (question.answer.content,) if question.kind.startswith("fact") and attempt < _TRIES // 2 else ()
        words = (*question.messages, question.thinking)
        if words not in seen and (not content or content not in seen):
            seen |= {words, content} - {()}
            return question
    raise ValueError(f"{topic.__name__}: no new question of the split {split} in {_TRIES} tries")
