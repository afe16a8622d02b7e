"""The forms of answers that models were trained for: reasoning, calls of tools, and what is left.

They are learned from a model's chat template; grammar, reader and checks follow from them.
"""
