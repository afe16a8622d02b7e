"""A row of logits and a draft become tokens."""
