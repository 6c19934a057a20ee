"""Read config.json before there is a device. Layers and checkpoints take their sizes from the result."""
