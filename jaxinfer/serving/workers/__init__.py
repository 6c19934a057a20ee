"""Worker processes, which read large bodies and tokenise long texts beside the event loop."""
