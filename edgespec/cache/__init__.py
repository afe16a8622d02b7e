"""The exact tokens in a model's cache, with rollback on any engine; faster copies of drafts."""
