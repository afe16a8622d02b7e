"""Workloads, measurements, replay of recorded answers, and reports."""
