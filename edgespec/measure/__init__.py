"""Measurements a user asks for: tune, doctor, inspect, compare formats."""
