"""Block sizes of the `xla` backend, chosen by platform."""

from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class BlockSizes:
    """Tile sizes of one attention call; temporaries grow with them and not with the context.

    keys: keys a tile, rounded up to whole pages.
    short_tiles: tiles of short rows handled at once, across rows; at most as many as there are rows.
    query_tokens: tokens of a long row in one query block.
    query_blocks: query blocks handled at once.
    """

    keys: int
    short_tiles: int
    query_tokens: int
    query_blocks: int

    def __post_init__(self) -> None:
        for name in ("keys", "short_tiles", "query_tokens", "query_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


_BY_PLATFORM = {
    "cpu": BlockSizes(keys=128, short_tiles=16, query_tokens=128, query_blocks=1),
    "gpu": BlockSizes(keys=256, short_tiles=256, query_tokens=64, query_blocks=16),
    "tpu": BlockSizes(keys=256, short_tiles=256, query_tokens=128, query_blocks=8),
}


def default_block_sizes(platform: str | None = None) -> BlockSizes:
    """The sizes for `platform` (`cpu`, `gpu` or `tpu`), by default the one that programs run on."""
    name = platform or jax.default_backend()
    return _BY_PLATFORM["gpu" if name in ("cuda", "rocm") else name]
