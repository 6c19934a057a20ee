"""PagePool: who holds which KV page of one group."""


class PagePool:
    """Reference counts of the pages of one KV group. Page 0 is scratch and never handed out.

    Every other page is in one of three states, and the counts always add up:
    `num_free + num_evictable + num_in_use == num_pages - 1`.

    free: nobody's. in use: held by at least one sequence. evictable: in the radix tree, held by none.
    """

    def __init__(self, num_pages: int):
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, 0, -1))
        self._refs = [0] * num_pages
        self._cached = bytearray(num_pages)
        self.num_evictable = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_in_use(self) -> int:
        return self.num_pages - 1 - len(self._free) - self.num_evictable

    @property
    def num_available(self) -> int:
        """Pages that can be handed out, after eviction where needed."""
        return len(self._free) + self.num_evictable

    def references(self, page: int) -> int:
        return self._refs[page]

    def is_cached(self, page: int) -> bool:
        """True where the radix tree holds the page."""
        return bool(self._cached[page])

    def take(self, count: int) -> list[int]:
        """Hands out `count` free pages, each with one reference."""
        if not count:
            return []
        if count > len(self._free):
            raise RuntimeError(f"{count} pages asked for, {len(self._free)} are free")
        pages = self._free[-count:]
        del self._free[-count:]
        for page in pages:
            self._refs[page] = 1
        return pages

    def retain(self, page: int) -> None:
        """Adds a reference to a page that is in use or evictable."""
        if not self._refs[page]:
            if not self._cached[page]:
                raise RuntimeError(f"page {page} is free and cannot be shared")
            self.num_evictable -= 1
        self._refs[page] += 1

    def release(self, page: int) -> bool:
        """Drops a reference. True where the page has become evictable."""
        refs = self._refs[page] - 1
        if refs < 0:
            raise RuntimeError(f"page {page} is freed twice")
        self._refs[page] = refs
        if refs:
            return False
        if self._cached[page]:
            self.num_evictable += 1
            return True
        self._free.append(page)
        return False

    def cache(self, page: int) -> None:
        """Notes that the radix tree now holds a page, which must be in use."""
        if not self._refs[page] or self._cached[page]:
            raise RuntimeError(f"page {page} cannot enter the radix tree")
        self._cached[page] = 1

    def uncache(self, page: int) -> None:
        """Notes that the radix tree no longer holds a page, which its holders keep."""
        if not self._refs[page] or not self._cached[page]:
            raise RuntimeError(f"page {page} cannot leave the radix tree")
        self._cached[page] = 0

    def evict(self, page: int) -> None:
        """Frees a page that only the radix tree holds."""
        if self._refs[page] or not self._cached[page]:
            raise RuntimeError(f"page {page} cannot be evicted")
        self._cached[page] = 0
        self.num_evictable -= 1
        self._free.append(page)
