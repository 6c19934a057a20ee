"""The user's name, told and asked for later."""

from random import Random

from demo_data.phrasing import made_up, pick, typed
from demo_data.question import Message, Question
from demo_data.words import NAMES

_SAYS = ("My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Hi, I am {n}!", "I'm {n}.", "Call me {n}.")
_ASKS = ("What is my name?", "Do you remember my name?", "Who am I?", "What's my name?", "Tell me my name.")


def memory(rng: Random, think: bool) -> Question:
    """A name that was told a turn ago. The content is the name."""
    name = rng.choice(NAMES) if rng.random() < 0.4 else made_up(rng)
    messages = (
        Message("user", typed(rng, pick(rng, _SAYS, n=name))),
        Message("assistant", f"Nice to meet you, {name}!"),
        Message("user", typed(rng, rng.choice(_ASKS))),
    )
    answer = Message("assistant", f"Your name is {name}.", f"The name is {name}." if think else "")
    kind = "name told before, thinking" if think else "name told before"
    return Question(kind, ("name", name), messages, answer, lambda text: text.strip() == f"Your name is {name}.")
