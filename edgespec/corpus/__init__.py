"""Texts to draft from besides the conversation: documents and earlier answers, indexed and kept."""
