"""A conversation of one message, a tool that it may offer, a call of it, and a template that shows all of them."""

from typing import Any

CHAT: list[Any] = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    '{% for m in messages %}<|{{ m.role }}|>{{ m.reasoning_content or "" }}{{ m.content }}'
    "{% for call in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ call.function.name }}\", "
    "\"arguments\": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{# </think> #}"
)  # fmt: skip
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
WEATHER_ITEM: Any = {"type": "function", "strict": None, **WEATHER["function"]}
"""The tool in the form of /v1/responses."""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern"}}\n</tool_call>'
