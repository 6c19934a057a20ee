"""Lists of modules that are left as they are, as transformers' tools write them."""

from jaxinfer.checkpoint.formats.modules import Modules, with_wildcards
from jaxinfer.config_json.reader import ConfigReader


def read_left_out_pieces(config: ConfigReader, key: str) -> Modules:
    """The modules in a list of `config`: every module whose name has an entry in it, as AutoAWQ decides."""
    return Modules(pieces=tuple(text for text in config.texts(key) if text))


def read_left_out(config: ConfigReader, *keys: str) -> Modules:
    """The modules in lists of `config`: an entry is words of names between dots, and `*` stands for any characters."""
    texts = [(key, text) for key in keys for text in config.texts(key)]
    return Modules(
        parts=tuple(text for _, text in texts if "*" not in text),
        patterns=tuple(
            with_wildcards(text, f"{config.where}: {key}", anywhere=True) for key, text in texts if "*" in text
        ),
    )
