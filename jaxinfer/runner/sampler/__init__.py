"""The sampler: from logits of scored positions to drawn tokens and log-probabilities."""

from jaxinfer.runner.sampler.sample import Sampled, sample_tokens

__all__ = ["Sampled", "sample_tokens"]
