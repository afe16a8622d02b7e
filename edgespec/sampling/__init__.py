"""Rows of logits and a draft become tokens: the sampler, randomness and acceptance rules."""
