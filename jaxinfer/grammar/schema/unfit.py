"""UnfitError: a schema of which no grammar can be made."""


class UnfitError(Exception):
    """A schema of which no grammar can be made; the message says why."""
