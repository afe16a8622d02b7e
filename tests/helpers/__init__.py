"""Helpers that several tests share: weights, toy servers, engines made for tests, enumeration."""
