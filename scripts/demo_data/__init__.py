"""Generated conversations that the demo model is trained on. The same seed gives the same conversations."""

from demo_data.mix import Conversation, conversations, plain_texts

__all__ = ["Conversation", "conversations", "plain_texts"]
