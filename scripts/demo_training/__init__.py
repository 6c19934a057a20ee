"""Trains a small Qwen3 on generated conversations and writes it as a Hugging Face folder."""
