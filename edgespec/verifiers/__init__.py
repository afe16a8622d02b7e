"""Where the target is and who judges a draft: one file each, a `Verifier` each."""
