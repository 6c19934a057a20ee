"""Grammars of constrained requests, by llguidance: `Grammars` is what the engine is given."""
