"""ChatML: how a conversation becomes text. The template and the Python below must agree; a test compares them."""

from demo_data import Conversation

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

CHAT_TEMPLATE = """\
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('The demo model knows the roles system, user and assistant, not ' ~ message.role) }}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def pieces(conversation: Conversation) -> list[tuple[str, bool]]:
    """The text in order; True marks what the model has to say itself."""
    found = [(message("system", conversation.system), False)] if conversation.system else []
    for turn in conversation.turns:
        found.append((message("user", turn.user) + opening("assistant"), False))
        found.append((turn.answer + IM_END, True))
        found.append(("\n", False))
    return found


def message(role: str, content: str) -> str:
    """A whole message."""
    return f"{opening(role)}{content}{IM_END}\n"


def opening(role: str) -> str:
    """What stands before a message's content."""
    return f"{IM_START}{role}\n"
