"""Tracking and rolling back the tokens in a model's cache; making faster copies of draft models."""
