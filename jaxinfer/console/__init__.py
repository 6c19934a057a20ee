"""Output of this package's programs: messages, progress, a log, and text on a terminal."""
