"""Requests to all APIs, and their answers before the way from one to the other was made anew."""
