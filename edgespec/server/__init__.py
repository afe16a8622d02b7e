"""The server: OpenAI's and Anthropic's APIs, and verification for devices."""
