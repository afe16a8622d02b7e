"""Training of drafts on this device: prompts become answers, hidden states and a head."""
