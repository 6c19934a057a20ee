"""Experts at run time: their load, and their moves between devices."""
