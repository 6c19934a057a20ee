"""Very short stories about given names and things."""

import re
from random import Random

from demo_data.phrasing import a, join, made_up, typed
from demo_data.question import Question, plain
from demo_data.words import NAMES, STORY_THINGS

_ASK_NAMES = ("about {n}", "with {n}", "about a child called {n}", "in which {n} appears")
_ASK_PEOPLE = ("about {n}", "with {n}", "about the friends {n}")
_ASK_THINGS = (" and {t}", ", with {t}", " who finds {t}", "; it must have {t} in it")
_ASK_THINGS_MANY = (" and {t}", ", with {t}", "; use {t}")
_ASKS = ("Tell me a story {s}.", "Tell me a short story {s}.", "Write a story {s}.", "Can you tell me a story {s}?",
         "A story {s}, please.", "Write a very short story {s}.", "I want to hear a story {s}.")  # fmt: skip

_PLACES = ("in the forest", "by the sea", "in a small village", "on a hill", "near the river", "in a big city")
_OPENINGS = ("Once upon a time, {n} lived {p}.", "Long ago, {n} lived {p}.", "There was once a child called {n} {p}.")
_MEETS = ("Soon {n} came by.", "On the way was {n}, who wanted to come along.", "Then {n} came to help.")
_FINDS = ("One day there was {t} under a tree.", "In the grass lay {t}.", "In an old house there was {t}.",
          "At the door stood a man with {t}.", "Behind a stone there was {t}.")  # fmt: skip
_ENDS = ("In the evening everybody was happy. The end.", "They laughed all the way home. The end.",
         "It was a good day. The end.", "And so they lived happily ever after.")  # fmt: skip
_MOODS = ("", "", "The sun was shining.", "It was a cold morning.", "The wind was strong.", "It rained a little.")


def story(rng: Random, think: bool) -> Question:
    """A story with 1 or 2 given names and 1 to 3 given things. The content is those names and things."""
    names = _names(rng)
    things = rng.sample(STORY_THINGS, rng.randint(1, 3))
    thought = f"A story with {join(names)}, and {join([a(t) for t in things])}." if think else ""
    content = ("story", *sorted(names), *sorted(things))
    return plain("story", content, typed(rng, _request(rng, names, things)), _tell(rng, names, things), thought,
                 lambda text: tells(text, names, things))  # fmt: skip


def simple_story(rng: Random, think: bool) -> Question:
    """A story about an animal, or about nothing in particular. Not asked in the evaluation."""
    animal = rng.choice(
        ("cat", "dog", "fox", "bear", "mouse", "rabbit", "horse", "bird", "frog", "owl", "dragon", "robot")
    )
    things = rng.sample(STORY_THINGS, 2)
    ask = rng.choice(("Tell me a story.", "Write a story.", "A story, please.", f"Tell me a story about {a(animal)}.",
                      f"Write a short story about {a(animal)}.", f"A story about {a(animal)}, please."))  # fmt: skip
    answer = _tell(rng, [f"a little {animal}"], things)
    thought = f"A story about {a(animal)}." if think else ""
    return plain("simple story", ("simple story", animal, *things), typed(rng, ask), answer, thought, lambda _: True)


def tells(text: str, names: list[str], things: list[str]) -> bool:
    """Return whether a story has all names and things, a proper end, 15 to 120 words, and no sentence twice."""
    words = re.findall(r"[\w-]+", text)
    sentences = re.split(r"(?<=[.!?])\s+", text.strip())
    lower = {word.lower() for word in words}
    complete = {word.lower() for word in (*names, *things)} <= lower
    ended = bool(re.search(r"(The end|ever after)\.$", text.strip()))
    return complete and ended and 15 <= len(words) <= 120 and len(set(sentences)) == len(sentences)


def _names(rng: Random) -> list[str]:
    names = rng.sample(NAMES, rng.randint(1, 2))
    return [made_up(rng), *names[1:]] if rng.random() < 0.2 else names


def _request(rng: Random, names: list[str], things: list[str]) -> str:
    who = rng.choice(_ASK_NAMES if len(names) == 1 else _ASK_PEOPLE).format(n=join(names))
    what = rng.choice(_ASK_THINGS if len(things) == 1 else _ASK_THINGS_MANY).format(t=join([a(t) for t in things]))
    return rng.choice(_ASKS).format(s=who + what)


def _tell(rng: Random, names: list[str], things: list[str]) -> str:
    """An opening, a sentence for each further name and each thing, and an end."""
    sentences = [rng.choice(_OPENINGS[: 2 if " " in names[0] else 3]).format(n=names[0], p=rng.choice(_PLACES))]
    sentences.append(rng.choice(_MOODS))
    found = rng.sample(_FINDS, len(things))
    middle = [sentence.format(t=a(thing)) for sentence, thing in zip(found, things, strict=True)]
    for name in names[1:]:
        middle.insert(rng.randint(0, len(middle)), rng.choice(_MEETS).format(n=name))
    return " ".join(filter(None, (*sentences, *middle, rng.choice(_ENDS))))
