"""The server: OpenAI's API, and verification for devices."""
