"""Chat: turns messages and tools into a prompt, and an answer into content, reasoning and calls."""
