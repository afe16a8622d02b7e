"""The decoding of a request: the loop of steps, the drafts, the output and the request lock."""
