"""The HTTP edge: OpenAI's API over an EngineClient. No jax, and no knowledge of an engine."""
