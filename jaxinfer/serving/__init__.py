"""What an API process does with a request, whichever protocol it came by. HTTP and gRPC sit on top, side by side."""
