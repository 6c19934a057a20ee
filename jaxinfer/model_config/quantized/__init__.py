"""Read what config.json declares of quantised weights: a small file for each tool that writes them."""
