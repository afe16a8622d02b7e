"""Verification for devices: one target evaluates the drafts of many sessions together."""
