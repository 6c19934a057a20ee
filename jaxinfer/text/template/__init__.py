"""Chat templates: from messages to the token ids of a conversation."""
