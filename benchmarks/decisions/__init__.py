"""Decisions of the controller in replay, recorded once and compared with those of later code."""
