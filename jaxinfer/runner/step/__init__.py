"""One step on the device, as traced functions: the layers over its tokens, and the samples of its rows."""
