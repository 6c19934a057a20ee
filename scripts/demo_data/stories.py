"""Very short stories: somebody, somewhere, finds or loses something, and it ends well."""

from random import Random

from demo_data.tables import NAMES
from demo_data.turns import Turn, a, pick, typed

ANIMALS = (
    "cat",
    "dog",
    "fox",
    "bear",
    "mouse",
    "rabbit",
    "horse",
    "bird",
    "frog",
    "owl",
    "dragon",
    "unicorn",
    "robot",
    "lion",
    "turtle",
    "duck",
    "bee",
    "fish",
    "elephant",
    "wolf",
)
_MOODS = ("little", "brave", "happy", "curious", "clever", "friendly", "small", "kind")
_PLACES = (
    "in the forest",
    "by the sea",
    "in a small village",
    "on a hill",
    "near the river",
    "in a big city",
    "on a farm",
)
_THINGS = (
    "ball",
    "key",
    "hat",
    "book",
    "map",
    "lamp",
    "flower",
    "kite",
    "boat",
    "star",
    "coin",
    "drum",
    "apple",
    "bell",
)
_FINDS = ("under a tree", "behind a stone", "in the grass", "in an old box", "on the road", "at the door")

_PLOTS = (
    "One day {s} found {thing} {find}. {S} asked everybody whose it was. It belonged to {friend}, who was very glad. "
    "From then on they were friends.",
    "One day {s} lost {poss} {bare}. {S} looked for it everywhere. In the end {friend} found it {find}. They laughed "
    "and played until the evening.",
    "One night it was dark, and {s} was afraid. Then {friend} came with {thing} and sat down. They talked until the "
    "sun came up.",
    "{S} wanted to see the world. So {s} took {thing} and walked all day. On the way {s} met {friend}, and they went "
    "on together.",
    "It rained for a week, and {s} was bored. Then {friend} brought {thing}. They played all day, and when the sun "
    "came out they did not even see it.",
)
_ENDS = ("", " The end.", " And they lived happily ever after.")
_OPENINGS = ("Once upon a time", "Long ago", "A long time ago")
_ASK = (
    "Tell me a story{x}.",
    "Tell me a short story{x}.",
    "Write a story{x}.",
    "Can you tell me a story{x}?",
    "A story{x}, please.",
)
_ASK_LONG = (
    "Write a one-sentence bedtime story{x}.",
    "Write a very short story{x}.",
    "I want to hear a story{x}.",
    "Story{x}",
)


def story(rng: Random) -> list[Turn]:
    """A request for a story, about somebody or nobody in particular."""
    name = rng.choice(NAMES) if rng.random() < 0.5 else ""
    animal = rng.choice(ANIMALS)
    about = rng.choice(("", f" about {name or a(animal)}", f" about {name or a(animal)}"))
    ask = typed(rng, pick(rng, _ASK if rng.random() < 0.7 else _ASK_LONG, x=about))
    return [Turn(ask, tell(rng, name, animal))]


def tell(rng: Random, name: str, animal: str) -> str:
    """A story about `name`, or, where that is empty, about an animal."""
    hero = name or f"the {animal}"
    friend = rng.choice([n for n in NAMES if n != name]) if rng.random() < 0.5 else f"{a(rng.choice(ANIMALS))}"
    who = f"a {rng.choice(_MOODS)} child called {name}" if name else f"a {rng.choice(_MOODS)} {animal}"
    bare = rng.choice(_THINGS)
    plot = pick(
        rng,
        _PLOTS,
        s=hero,
        S=hero[0].upper() + hero[1:],
        thing=a(bare),
        bare=bare,
        poss="a favourite" if name else "its",
        find=rng.choice(_FINDS),
        friend=friend,
    )
    return f"{rng.choice(_OPENINGS)}, {who} lived {rng.choice(_PLACES)}. {plot}{rng.choice(_ENDS)}"


def poem(rng: Random) -> list[Turn]:
    """A request for a poem, and four lines that rhyme whatever they are about."""
    animal = rng.choice(ANIMALS)
    ask = pick(rng, ("Write a poem about {x}.", "Write a haiku about {x}.", "A poem about {x}, please."), x=a(animal))
    place = rng.choice(("hill", "mill"))
    lines = f"There was {a(animal)} upon the {place},\nThe moon was bright, the night was still.\n"
    lines += f"The {animal} looked up and saw a star,\nAnd wondered: how far, how far, how far?"
    return [Turn(typed(rng, ask), lines)]
