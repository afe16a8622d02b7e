"""Measurements that a user asks for: tune, doctor, inspect, compare formats."""
