"""Engines: one file each, a `Model` each, imported only when asked for."""
