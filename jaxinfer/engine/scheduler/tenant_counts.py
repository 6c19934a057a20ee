"""TenantCounts: how many requests each tenant has somewhere."""


class TenantCounts:
    """Requests of each tenant, and of each API key that users are told apart of. One thread writes at a time.

    total: of all tenants. Reading is safe in any thread.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: dict[tuple[str, ...], int] = {}

    def of(self, tenant: tuple[str, ...]) -> int:
        """Requests of a tenant, or of all tenants whose names begin so."""
        return self._counts.get(tenant, 0)

    def add(self, tenant: tuple[str, ...]) -> None:
        """One request more."""
        self.total += 1
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
