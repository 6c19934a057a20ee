"""What a config.json says of weights that are quantised already: a small file for each tool that writes them."""
