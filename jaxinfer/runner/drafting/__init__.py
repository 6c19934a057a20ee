"""Drafts: what proposes the next tokens of rows, and the programs that check and keep them."""
