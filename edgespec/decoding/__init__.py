"""The decoding of requests: the loop of steps, drafts, the output and the slots of an engine."""
