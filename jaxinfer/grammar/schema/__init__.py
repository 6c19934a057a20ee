"""JSON Schemas, rewritten to what llguidance holds: `rewriting.rewritten` is what grammars are made from."""
