"""The decoding of a request: the loop, its output, the engine, chats and templates."""
