"""BlockPool: who holds which KV block of one group."""


class BlockPool:
    """Reference counts of the blocks of one KV group. Block 0 is scratch and never handed out.

    Every other block is in one of three states, and the counts always add up:
    `num_free + num_evictable + num_in_use == num_blocks - 1`.

    free: nobody's. in use: held by at least one sequence. evictable: in the radix tree, held by none.
    """

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, 0, -1))
        self._refs = [0] * num_blocks
        self._cached = bytearray(num_blocks)
        self.num_evictable = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_in_use(self) -> int:
        return self.num_blocks - 1 - len(self._free) - self.num_evictable

    @property
    def num_available(self) -> int:
        """Blocks that can be handed out, after eviction where needed."""
        return len(self._free) + self.num_evictable

    def references(self, block: int) -> int:
        return self._refs[block]

    def take(self, count: int) -> list[int]:
        """Hands out `count` free blocks, each with one reference."""
        if not count:
            return []
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks asked for, {len(self._free)} are free")
        blocks = self._free[-count:]
        del self._free[-count:]
        for block in blocks:
            self._refs[block] = 1
        return blocks

    def retain(self, block: int) -> None:
        """Adds a reference to a block that is in use or evictable."""
        if not self._refs[block]:
            if not self._cached[block]:
                raise RuntimeError(f"block {block} is free and cannot be shared")
            self.num_evictable -= 1
        self._refs[block] += 1

    def release(self, block: int) -> bool:
        """Drops a reference. True where the block has become evictable."""
        refs = self._refs[block] - 1
        if refs < 0:
            raise RuntimeError(f"block {block} is freed twice")
        self._refs[block] = refs
        if refs:
            return False
        if self._cached[block]:
            self.num_evictable += 1
            return True
        self._free.append(block)
        return False

    def cache(self, block: int) -> None:
        """Notes that the radix tree now holds a block, which must be in use."""
        if not self._refs[block] or self._cached[block]:
            raise RuntimeError(f"block {block} cannot enter the radix tree")
        self._cached[block] = 1

    def uncache(self, block: int) -> None:
        """Notes that the radix tree no longer holds a block, which its holders keep."""
        if not self._refs[block] or not self._cached[block]:
            raise RuntimeError(f"block {block} cannot leave the radix tree")
        self._cached[block] = 0

    def evict(self, block: int) -> None:
        """Frees a block that only the radix tree holds."""
        if self._refs[block] or not self._cached[block]:
            raise RuntimeError(f"block {block} cannot be evicted")
        self._cached[block] = 0
        self.num_evictable -= 1
        self._free.append(block)
