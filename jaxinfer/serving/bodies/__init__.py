"""Request bodies in JSON, as OpenAI's API and vLLM have them: schemas, limits, and decoding."""
