"""Programs: what each is, and how they are compiled and kept."""
