"""Things that guess what the target will say: one file each, a `Drafter` each."""
