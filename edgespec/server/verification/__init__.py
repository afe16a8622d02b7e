"""Verification for devices: many sessions, one target, evaluated together."""
