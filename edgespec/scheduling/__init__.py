"""One batched target: its slots, and what is evaluated together."""
