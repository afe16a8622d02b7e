"""How much to draft, and from which source: one file each, a `Policy` each."""
