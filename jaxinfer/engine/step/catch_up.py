"""How much a draft model reads of a row that begins to draft: the tokens of steps that it did not follow."""

READ_AGAIN = 2
"""Last tokens of a row that a draft model reads as it begins to draft: the newest it has never seen, and after drafts
that were all kept not the one before it either. What it has missed before them it catches up with first."""
PASSES = 8
"""How often it does so before a step, at most: one step must not hold up all streams for long."""
_TOKENS, _LONGEST = 512, 64


def catch_up_width(rows: int) -> int:
    """Tokens of each of so many rows that it reads at once."""
    return max(READ_AGAIN, min(_LONGEST, _TOKENS // rows))


def reach(rows: int) -> int:
    """Last tokens of each of so many rows that may be unread. What lies before them stays unread, a hole."""
    return READ_AGAIN + PASSES * catch_up_width(rows)
