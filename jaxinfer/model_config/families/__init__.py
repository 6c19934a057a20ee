"""A file a family: what its config.json says, and what it leaves out."""
