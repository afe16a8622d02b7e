"""Messages and tools become a prompt, an answer becomes parts: content, reasoning, calls."""
