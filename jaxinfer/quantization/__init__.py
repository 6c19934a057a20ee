"""Weights held in few bits: what a scheme is, how it is made, and how it is multiplied."""
