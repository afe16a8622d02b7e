"""Workloads, measurements, replay of recorded decisions, and reports."""
