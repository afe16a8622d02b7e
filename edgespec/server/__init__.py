"""The verification server and its OpenAI-compatible front."""
