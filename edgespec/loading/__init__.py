"""Loading and connecting: the only package that puts concrete parts together."""
