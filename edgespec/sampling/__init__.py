"""Choosing tokens from logits rows and a draft: the sampler, randomness and acceptance rules."""
