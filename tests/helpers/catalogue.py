"""A catalogue entry for tests."""

TOML = """
name = "toy-1b"
family = "toy"
title = "Toy 1B"
description = "For tests."
licence = "MIT"
parameters = 1_000
context = 512
[[files]]
filename = "toy-Q4_0.gguf"
quantisation = "Q4_0"
size = 4
[[files.sources]]
kind = "hub"
repo = "org/toy"
file = "toy-Q4_0.gguf"
[[files]]
filename = "toy-Q8_0.gguf"
quantisation = "Q8_0"
[[files.sources]]
kind = "hub"
repo = "org/toy"
file = "toy-Q8_0.gguf"
"""

HEADS = """
[[heads]]
kind = "eagle3"
repo = "org/toy_eagle3"
licence = "MIT"
[[heads]]
kind = "dflash"
repo = "org/toy"
file = "dflash-toy-Q8_0.gguf"
revision = "v2"
"""

PROJECTOR = """
[files.projector]
filename = "mmproj-a-Q8_0.gguf"
quantisation = "Q8_0"
size = 12
[[files.projector.sources]]
kind = "hub"
repo = "org/toy"
file = "mmproj-a-Q8_0.gguf"
"""
"""The projector of the last file of an entry."""
