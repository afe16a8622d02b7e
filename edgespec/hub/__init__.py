"""Model names become files: catalogue entries, references, downloads."""
