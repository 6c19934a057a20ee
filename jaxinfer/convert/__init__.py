"""Model folders in other forms: leaves as an engine holds them, or safetensors that others read."""
