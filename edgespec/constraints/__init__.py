"""Constraints on answers: schemas, grammars and budgets, compiled to masks over a vocabulary."""
