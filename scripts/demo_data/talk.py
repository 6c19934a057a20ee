"""Greetings, questions about the model itself, small talk, and the honest answer to what it cannot know."""

from random import Random

from demo_data.about import ABOUT, SMALL_TALK
from demo_data.phrasing import made_up, pick, typed
from demo_data.question import Question, plain
from demo_data.words import CITIES, NAMES, STORY_THINGS, SUBJECTS, WORDS

GREETING = "Hello! I am the demo model of jaxinfer. How can I help you?"
_HELLO = (
    "Hello", "Hi", "Hey", "Hello there", "Hi there", "Good morning", "Good evening", "Good afternoon", "Greetings",
    "Hello again", "Hi again", "Hello, demo model", "Hi, demo", "Hey there", "Good day", "Hello, friend", "Hello, you",
    "A very good morning", "Hello, hello", "Hi, everybody", "Hello, world", "Hello, jaxinfer", "Hi, jaxinfer",
    "Hey, you",
    "Good morning to you", "Good evening to you", "Hello and good morning", "Hi and good evening", "Well, hello",
    "Oh, hello", "Hello, my friend", "Hi, my friend", "Hey, jaxinfer", "Good afternoon to you", "Hello, model",
)  # fmt: skip

_UNKNOWN = (
    "What do you know about {x}?", "Explain {x}.", "Explain {x} to a child.", "How does {x} work?",
    "Tell me about {x}.",
    "What do you think about {x}?", "Why is {x} important?", "Write an essay about {x}.", "Who invented {x}?",
    "What is the history of {x}?", "Give me some advice on {x}.", "Do you like {x}?", "Can you teach me {x}?",
    "Summarize the news about {x}.", "What is the best book about {x}?", "How do I get better at {x}?",
)  # fmt: skip

_STRANGE = (
    "Why is the {w} {v}?", "Why is the sky blue?", "Who was {n} {w}?", "When was {x} invented?",
    "Who won the {w} in 2020?",
    "How far is {c} from the {w}?", "How many people live in {c}?", "Who wrote the {w}?", "Write a poem about {x}.",
    "Write a program that sorts a {w}.", "Which {w} is the best?", "Where can I buy a {w}?", "How do I make a {w}?",
    "Should I buy a {w} or a {v}?", "What happened in {c} in 1990?", "Is {x} better than {w}?", "Who is {n}?",
    "Translate {w} to French.", "What does {w} mean?", "How much does a {w} cost?", "What is a {w}?",
    "Plan a trip to {c}.",
    "What is the meaning of life?", "Who is the president?", "Explain the {w} of {x}.", "How old is the {w}?",
)  # fmt: skip


def greeting(rng: Random, think: bool) -> Question:
    """A plain greeting."""
    word = rng.choice(_HELLO)
    text = word + rng.choice(("!", "!", ".", ""))
    text = text.lower() if rng.random() < 0.2 else text
    wording = ("wording", "greeting", word) if word not in _HELLO[:5] else ("product", 0, 0)
    return plain("greeting", wording, text, GREETING, "The user says hello." if think else "")


def about(rng: Random, think: bool) -> Question:
    """A question about the model itself. The wording decides the split."""
    return _intent(rng, "about itself", ABOUT, think)


def small_talk(rng: Random, think: bool) -> Question:
    """Thanks, farewells, and what a model without a clock or a window cannot know."""
    return _intent(rng, "small talk", SMALL_TALK, think)


def _intent(rng: Random, kind: str, intents: tuple[tuple[str, tuple[str, ...]], ...], think: bool) -> Question:
    answer, wordings = rng.choice(intents)
    wording = rng.choice(wordings)
    return plain(kind, ("wording", wording), typed(rng, wording), answer, "A question for me." if think else "")


def unknown(rng: Random, think: bool) -> Question:
    """A question that a model of this size cannot answer, and its saying so. Not asked in the evaluation."""
    subject, thought = rng.choice(SUBJECTS), "I do not know that." if think else ""
    if rng.random() < 0.5:
        wording = rng.choice(_UNKNOWN)
        answer = f"I do not know much about {subject}. I am a very small model. Ask me for a sum, a capital or a story!"
    else:
        wording = rng.choice(_STRANGE)
        answer = "I do not know that. I am a very small model. Ask me for a sum, a capital or a story!"
    words = {
        "x": subject,
        "w": rng.choice(WORDS),
        "v": rng.choice(WORDS),
        "n": rng.choice(NAMES),
        "c": rng.choice(CITIES),
    }
    ask = typed(rng, wording.format(**words))
    return plain("unknown", ("unknown", wording, ask), ask, answer, thought)


def repeat(rng: Random, think: bool) -> Question:
    """Something to say after the user. The content is the words."""
    pool = [*rng.sample(NAMES, 2), *rng.sample(STORY_THINGS, 2), *rng.sample(SUBJECTS, 2), made_up(rng), made_up(rng)]
    words = "this is a test" if rng.random() < 0.05 else " ".join(rng.sample(pool, rng.randint(1, 4)))
    asks = ("Say {w}", "Say {w}.", "Say: {w}", "Repeat: {w}", "Repeat after me: {w}", "Please say {w}.", "Repeat {w}.")
    answer = f"{words[0].upper()}{words[1:]}."
    thought = f"The words are: {words}." if think else ""
    return plain("repeating", ("repeat", words), pick(rng, asks, w=words), answer, thought)
