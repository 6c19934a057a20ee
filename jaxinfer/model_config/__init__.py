"""What a config.json declares, read before there is a device. Layers and checkpoints take their sizes from it."""
