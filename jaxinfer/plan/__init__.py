"""What a model takes of a mesh that need not be here: memory, time of a step, what bounds it."""
