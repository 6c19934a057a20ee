"""Sizes and memory: what an engine takes of its devices, and how many blocks are left room for."""
