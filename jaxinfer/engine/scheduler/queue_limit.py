"""TenantCounts: how many requests each tenant has somewhere; and how many it may have waiting."""

_KEY_FACTOR = 3
"""Free places that all users of an API key may hold for each one that is free: half as many again as one user alone."""


class TenantCounts:
    """Requests of each tenant, and of each API key that users are told apart of. One thread writes at a time.

    total: of all tenants. Reading is safe in any thread.
    """

    def __init__(self) -> None:
        self.total = 0
        self._tenants = 0
        self._counts: dict[tuple[str, ...], int] = {}

    @property
    def num_tenants(self) -> int:
        """Tenants that have any."""
        return self._tenants

    def of(self, tenant: tuple[str, ...]) -> int:
        """Requests of a tenant, or of all tenants whose names begin so."""
        return self._counts.get(tenant, 0)

    def add(self, tenant: tuple[str, ...]) -> None:
        """One request more."""
        self.total += 1
        self._tenants += not self.of(tenant)
        for end in range(1, len(tenant) + 1):
            self._counts[tenant[:end]] = self.of(tenant[:end]) + 1

    def remove(self, tenant: tuple[str, ...]) -> None:
        """One request less."""
        self.total -= 1
        for end in range(1, len(tenant) + 1):
            left = self.of(tenant[:end]) - 1
            if left:
                self._counts[tenant[:end]] = left
            else:
                del self._counts[tenant[:end]]
        self._tenants -= not self.of(tenant)


def has_room(max_waiting: int, tenant: tuple[str, ...], *waiting: TenantCounts) -> bool:
    """Return whether a tenant may have one more request waiting.

    Without tenants (fair sharing is off) `max_waiting` may wait. With them the queue has twice as many places, and each
    tenant may hold as many as are free: so one alone holds `max_waiting`, and whoever comes next finds half of what is
    free (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998). Where users
    are told apart, made-up ones cannot fill it: those of a key may hold three times what is free.
    """
    total = sum(counts.total for counts in waiting)
    if not tenant:
        return total < max_waiting
    free = 2 * max_waiting - total
    limits = [_KEY_FACTOR * free] * (len(tenant) - 1) + [free]
    held = [sum(counts.of(tenant[:end]) for counts in waiting) for end in range(1, len(tenant) + 1)]
    return all(number < limit for number, limit in zip(held, limits, strict=True))
