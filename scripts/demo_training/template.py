"""ChatML: how a conversation becomes text. The template and the Python below must agree; a test compares them."""

from collections.abc import Mapping, Sequence
from typing import Any

from demo_data import Conversation, Message

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = """\
{%- macro text(content) %}
    {%- if content is string %}
        {{- content | trim }}
    {%- elif content is iterable and content is not mapping %}
        {{- content | selectattr('text', 'defined') | map(attribute='text') | join('\\n') | trim }}
    {%- endif %}
{%- endmacro %}
{%- macro kind(schema) %}
    {%- if schema is not mapping %}
        {{- 'any' }}
    {%- elif schema.enum is defined and schema.enum is iterable %}
        {{- schema.enum | join('|') }}
    {%- elif schema.type is string %}
        {{- schema.type }}
    {%- elif schema.type and schema.type is iterable %}
        {{- schema.type | join('|') }}
    {%- else %}
        {{- 'any' }}
    {%- endif %}
{%- endmacro %}
{%- macro signature(tool) %}
    {%- set function = tool.function if tool.function is mapping else tool %}
    {%- set schema = function.parameters if function.parameters is mapping else {} %}
    {%- set required = schema.required if schema.required is iterable else [] %}
    {{- function.name ~ '(' }}
    {%- if schema.properties is mapping %}
        {%- for name, property in schema.properties.items() %}
            {{- name ~ ('' if name in required else '?') ~ ': ' ~ kind(property) }}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- ')' }}
    {%- if function.description %}
        {{- ': ' ~ function.description | string | replace('\\n', ' ') | trim }}
    {%- endif %}
{%- endmacro %}
{%- macro call(tool_call) %}
    {%- set function = tool_call.function if tool_call.function is mapping else tool_call %}
    {%- set arguments = function.arguments if function.arguments is string else function.arguments | tojson %}
    {{- '<tool_call>\\n{"name": "' ~ function.name ~ '", "arguments": ' ~ arguments ~ '}\\n</tool_call>' }}
{%- endmacro %}
{%- set ns = namespace(last_user=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last_user = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- set first = messages[0] if messages and messages[0].role in ['system', 'developer'] else none %}
{%- if first or tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if first %}
        {{- text(first.content) }}
        {%- if tools %}{{- '\\n\\n' }}{%- endif %}
    {%- endif %}
    {%- if tools %}
        {{- '# Tools' }}
        {%- for tool in tools %}
            {{- '\\n' ~ signature(tool) }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ['system', 'developer'] %}
        {%- if not loop.first %}
            {{- '<|im_start|>system\\n' ~ text(message.content) ~ '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {%- set content = text(message.content) %}
        {%- if loop.index0 == ns.last_user and enable_thinking is defined %}
            {%- if enable_thinking %}
                {%- if '/think' not in content and '/no_think' not in content %}
                    {%- set content = content ~ ' /think' %}
                {%- endif %}
            {%- else %}
                {%- set content = content | replace('/think', '') | trim %}
                {%- if '/no_think' not in content %}
                    {%- set content = content ~ ' /no_think' %}
                {%- endif %}
            {%- endif %}
        {%- endif %}
        {{- '<|im_start|>user\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- set content = text(message.content).split('</think>')[-1] | trim %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- call(tool_call) }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' ~ text(message.content) ~ '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('The demo model knows the roles system, user, assistant and tool, not ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def pieces(conversation: Conversation) -> list[tuple[str, bool]]:
    """The text in order; True marks what the model has to say itself."""
    found = [(head, False)] if (head := system_block(conversation.system, conversation.tools)) else []
    last = len(conversation.messages) - 1
    switched_on = False
    for i, message in enumerate(conversation.messages):
        if message.role != "assistant":
            found.append((said(message), False))
            switched_on = switched_on if message.role == "tool" else "/think" in message.content
            continue
        thought = f"<think>\n{message.thought}\n</think>\n\n" if message.thought and i == last else ""
        found.append((opening("assistant"), False))
        # A thought of the past is not shown, so that the answer after it is not what the model would say.
        found.append((thought + message.content + IM_END, i == last or not switched_on))
        found.append(("\n", False))
    return found


def prompt(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), system: str = "") -> str:
    """Return the text before an answer."""
    return system_block(system, tools) + "".join(map(said, messages)) + opening("assistant")


def system_block(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message with the tools, a line each; empty where there is neither."""
    if not system and not tools:
        return ""
    listed = "\n".join(["# Tools", *map(signature, tools)]) if tools else ""
    return f"{opening('system')}{system}{chr(10) * 2 if system and tools else ''}{listed}{IM_END}\n"


def signature(tool: Mapping[str, Any]) -> str:
    """A tool in a line: `name(parameter: type, optional?: one|other): description`."""
    function = tool["function"]
    schema = function["parameters"]
    parameters = (
        f"{name}{'' if name in schema['required'] else '?'}: {'|'.join(given.get('enum') or [given['type']])}"
        for name, given in schema["properties"].items()
    )
    description = f": {function['description']}" if function["description"] else ""
    return f"{function['name']}({', '.join(parameters)}){description}"


def said(message: Message) -> str:
    """A whole message, without its thought."""
    if message.role == "tool":
        return f"{opening('user')}<tool_response>\n{message.content}\n</tool_response>{IM_END}\n"
    return f"{opening(message.role)}{message.content}{IM_END}\n"


def opening(role: str) -> str:
    """Return the text before a message's content."""
    return f"{IM_START}{role}\n"
