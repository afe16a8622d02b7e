"""Policies decide how much to draft and from which source; one file each."""
