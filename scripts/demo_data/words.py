"""Lists of words: what is sorted and reversed, and what stories, objects and tools are filled with."""

WORDS: tuple[str, ...] = tuple(
    """
apple anchor bear bottle bridge candle castle cherry cloud desk dolphin drum eagle egg elbow feather flute fox garden
glove goat hammer harbor honey island ivory jacket jar jungle kettle kite ladder lemon lion magnet mirror moon needle
nest night ocean olive orange paper pencil piano queen quilt rabbit ribbon river saddle silver spoon table tiger
turtle umbrella uncle valley violin wagon walnut window yarn yellow zebra zipper
""".split()
)

NAMES: tuple[str, ...] = tuple(
    """
Anna Ben Clara David Emma Felix Grace Henry Ida Jack Kate Leo Maya Noah Olivia Paul Rosa Sam Tina Tom Lily Max Mia
Lucas Zoe Nina Omar Sara Amir Yuki Alice Bob Carol Peter Maria John Mary James Linda Robert
""".split()
)

STORY_THINGS: tuple[str, ...] = tuple(
    """
ball key hat book map lamp flower kite boat star coin drum apple bell box cake shell stone ring rope letter basket
bottle candle mirror pencil sweater blanket whistle feather button spoon
""".split()
)

CITIES: tuple[str, ...] = tuple(
    """
Paris Berlin Rome Madrid Lisbon London Dublin Vienna Oslo Athens Tokyo Cairo Lima Boston Chicago Seattle Sydney
Toronto Delhi Seoul Denver Munich Milan Prague Zurich Geneva Dallas Miami Moscow Havana
""".split()
)

COLOUR_NAMES: tuple[str, ...] = tuple("red green blue yellow white black brown orange purple pink grey gold".split())

LONG_CITIES = (
    "San Francisco", "New York", "Los Angeles", "Hong Kong", "Cape Town", "Buenos Aires", "Mexico City", "New Delhi",
    "San Diego", "Las Vegas", "Tel Aviv", "Abu Dhabi", "Paris, France", "London, UK", "Boston, MA", "Tokyo, Japan",
    "Berlin, Germany", "Rome, Italy", "San Jose", "New Orleans", "Santa Fe", "Rio de Janeiro", "Salt Lake City",
    "San Francisco, CA", "Seattle, WA", "Madrid, Spain", "Cairo, Egypt", "Denver, CO",
)  # fmt: skip

SUBJECTS = (
    "physics", "chemistry", "history", "music", "football", "politics", "the stock market", "quantum mechanics",
    "machine learning", "cooking", "philosophy", "the internet", "Python", "chess", "medicine", "gravity", "poetry",
    "the brain", "economics", "biology", "computers", "love", "dreams", "money", "the universe", "art", "bitcoin",
    "mathematics", "space travel", "the ocean", "neural networks", "tennis", "law", "photosynthesis", "electricity",
    "dinosaurs", "movies", "cars", "volcanoes", "guitars", "climate change", "language", "time", "black holes",
)  # fmt: skip

SYLLABLES: tuple[str, ...] = tuple(
    "an ba chi da el fo gu han in jo ka li mar no or pe ra san ti u vi wen xa yo ze bel dor fin gal".split()
)
