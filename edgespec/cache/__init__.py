"""The exact tokens in a model's memory, rollback on any engine; a draft's faster copy."""
