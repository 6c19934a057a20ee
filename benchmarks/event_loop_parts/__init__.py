"""Parts of event_loop.py."""
