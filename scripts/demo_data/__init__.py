"""Generated conversations that the demo model is trained on. The same seed gives the same conversations."""

from demo_data.mix import Conversation, asked, conversations, plain_texts
from demo_data.question import Message, Question
from demo_data.split import split_of

__all__ = ["Conversation", "Message", "Question", "asked", "conversations", "plain_texts", "split_of"]
