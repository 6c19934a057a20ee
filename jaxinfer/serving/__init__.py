"""Handling of requests in an API process, whichever protocol they came by. HTTP and gRPC sit on top, side by side."""
