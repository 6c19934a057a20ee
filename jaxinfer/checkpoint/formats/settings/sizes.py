"""Sizes of groups and blocks that share a scale."""

from typing import Any

from jaxinfer.config_json.reader import ConfigReader
from jaxinfer.errors import quoted

_LARGEST = 2**22


def read_group_size(config: ConfigReader) -> int | None:
    """`group_size`: columns that share a scale; None for all, which files call -1."""
    size = config.integer("group_size", config.integer("q_group_size", 128))
    return None if size == -1 else checked_size(config, "group_size", size)


def read_block(config: ConfigReader, key: str) -> tuple[int, int]:
    """Rows and columns of a block, [128, 128] or "128x128"."""
    block = config.get(key)
    sizes = [_number(text) for text in block.split("x", 2)] if isinstance(block, str) else block
    if not isinstance(sizes, list) or len(sizes) != 2:
        raise config.error(key, f"must be two integers, not {quoted(block)}")
    return checked_size(config, key, sizes[0]), checked_size(config, key, sizes[1])


def checked_size(config: ConfigReader, key: str, size: Any) -> int:
    """Raises ModelError for what is no integer, below 1 or far beyond the sizes of any model."""
    if type(size) is not int or not 1 <= size <= _LARGEST:
        raise config.error(key, f"must be of 1 to {_LARGEST}, not {quoted(size)}")
    return size


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() and len(text) < 10 else text
