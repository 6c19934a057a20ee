"""Asks a model folder held-out questions through the engine, and judges the answers by program."""
