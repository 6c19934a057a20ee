"""Read what tools that quantise say alike in config.json: sizes of groups, lists of modules, scales of KV."""
