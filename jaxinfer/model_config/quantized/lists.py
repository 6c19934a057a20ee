"""Lists of modules that are left as they are, as transformers' tools write them."""

from jaxinfer.errors import quoted
from jaxinfer.model_config.reader import ConfigReader
from jaxinfer.quantization.modules import Modules, with_wildcards


def read_left_out(config: ConfigReader, *keys: str) -> Modules:
    """The modules in lists of `config`: an entry is words of names between dots, and `*` stands for any characters."""
    texts = [(key, text) for key in keys for text in config.texts(key)]
    return Modules(
        parts=tuple(text for _, text in texts if "*" not in text),
        patterns=tuple(
            with_wildcards(text, f"{config.where}: {key}", anywhere=True) for key, text in texts if "*" in text
        ),
    )


def read_group_size(config: ConfigReader) -> int | None:
    """`group_size`: columns that share a scale; None for all, which files call -1."""
    size = config.integer("group_size", config.integer("q_group_size", 128))
    if size < 1 and size != -1:
        raise config.error("group_size", f"must be at least 1, or -1 for a scale a row, not {quoted(size)}")
    return None if size == -1 else size
