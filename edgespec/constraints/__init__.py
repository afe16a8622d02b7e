"""Schemas, grammars and budgets become masks over a vocabulary."""
