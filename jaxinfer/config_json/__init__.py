"""Read config.json: each key by its type, and those that nobody read."""
