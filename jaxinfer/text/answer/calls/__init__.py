"""Forms in which models write tool calls: how each is read, and how a constrained answer is made to have it."""
