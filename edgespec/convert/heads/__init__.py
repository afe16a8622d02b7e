"""Reads published checkpoints of trained drafts, with the names that each project gives tensors."""
