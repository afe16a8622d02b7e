"""Text to draft from beside the conversation: documents and earlier answers, indexed and kept."""
