"""What event_loop.py is made of."""
