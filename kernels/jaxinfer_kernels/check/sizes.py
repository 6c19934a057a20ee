"""Sizes as text."""


def size(count: int | None) -> str:
    """Bytes in a few characters, in units of 1024; `-` for what is not known."""
    if count is None:
        return "-"
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return str(count)
