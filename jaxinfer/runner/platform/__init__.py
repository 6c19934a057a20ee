"""The platform: its devices, its values and options, and the caches that a user has on it."""
