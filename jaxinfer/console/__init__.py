"""What the programs of this package print: messages, progress, a log, and text on a terminal."""
