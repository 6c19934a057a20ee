"""Forms that chat templates show, and those of them that are not taken apart."""

from collections.abc import Iterator

import pytest

from jaxinfer.cli.models import run as list_models
from jaxinfer.model_config.registry import ARCHITECTURES
from jaxinfer.text.answer.calls import json_calls, named_calls, xml_calls
from jaxinfer.text.answer.forms import unparsed
from jaxinfer.text.answer.parser import AnswerFormat
from jaxinfer.text.answer.thoughts import MISTRAL, SEED, THINK
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.template_process import TemplateLimits
from tests.material import material

CALLS, REASONING = "tool calls", "reasoning"
HERMES = '{{ tools }}<tool_call>{"name": "f"}</tool_call>'
PARSED = [
    "Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "Qwen-QwQ-32B", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
    "openai-gpt-oss-120b", "HuggingFaceTB-SmolLM3-3B", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct", "meta-llama-Llama-3.1-8B-Instruct",
    "meta-llama-Llama-3.2-3B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407", "Qwen3-Coder",
    "Mistral-Small-3.2-24B-Instruct-2506",
]  # fmt: skip
UNPARSED = {"ibm-granite-granite-3.3-2B-Instruct": {(REASONING, "Granite 3")}}
SNIPPETS = {
    "{{ tools }}<|START_THINKING|><|START_ACTION|>": {(REASONING, "Cohere")},
    "{{ tools }}": {(CALLS, "")},
    # The tag alone is no form.
    r"{{ tools }}<tool_calls><tool_call>' + name + '\n```json\n{}```</tool_call>": {(CALLS, "Hunyuan")},
    '{{ tools }}<|from|>assistant\n<|recipient|>f\n<|content|>{"name": 1}': {(CALLS, "Functionary 3.2")},
    "{{ tools }}<function_calls>": {(CALLS, "OLMo 3")},
    "{{ tools }}<tool_call>{{ call }}</tool_call> and a name": {(CALLS, "")},
    '{{ tools }}<tool_call>f(a="name": 1)</tool_call>': {(CALLS, "")},
    r"""{{ tools }}{{ '<tool_call>\n{\"name\": \"' + name }}""": set(),
    "{{ tools }}<tool_call>\n{'name': <function-name>, 'arguments': <args-dict>}": set(),
    "[THINK][/THINK]": set(),
    "[TOOL_CALLS]": set(),
    HERMES: set(),
    "<think></think>" + HERMES: set(),
}
SHOWN = {
    "<think></think><tool_call>f<arg_key>x</arg_key></tool_call>": (THINK, xml_calls.GLM),
    "<think></think><minimax:tool_call><invoke name=": (THINK, xml_calls.MINIMAX),
    "<seed:think></seed:think><seed:tool_call><function=f><parameter=a>": (SEED, xml_calls.SEED),
    "[THINK][/THINK][TOOL_CALLS]f[ARGS]{}": (MISTRAL, named_calls.MISTRAL),
    '<tool_calls>[{"name": <name>, "arguments": {}}]</tool_calls>': (None, json_calls.APRIEL),
    '<function=f>{"a": 1}</function>': (None, named_calls.FUNCTIONARY),
    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>": (None, xml_calls.QWEN),
    "<|START_ACTION|>": (None, json_calls.COHERE),
    "<|tool_call|>[]<|/tool_call|>": (None, json_calls.PHI),
    "<|action_start|><|plugin|>": (None, json_calls.INTERN),
    "<｜tool▁calls▁begin｜>function<｜tool▁sep｜>f\n```json": (None, named_calls.DEEPSEEK_V3),
    "</think><｜tool▁calls▁begin｜>f<｜tool▁sep｜>": (THINK, named_calls.DEEPSEEK_V31),
    "<|tool_calls_section_begin|>": (None, named_calls.KIMI),
}


@pytest.fixture
def templates() -> Iterator[list[ChatTemplate]]:
    made: list[ChatTemplate] = []
    yield made
    for template in made:
        template.close()


def shown(text: str, templates: list[ChatTemplate]) -> set[tuple[str, str]]:
    templates.append(ChatTemplate({"default": text}, {}, TemplateLimits()))
    return {(form.what, form.family) for form in templates[0].unparsed_forms()}


@pytest.mark.parametrize("name", [*PARSED, *UNPARSED])
def test_published_templates(name: str, templates: list[ChatTemplate]) -> None:
    text = material("chat_templates", f"{name}.jinja").read_text()
    assert shown(text, templates) == UNPARSED.get(name, set())


@pytest.mark.parametrize("text", SNIPPETS)
def test_marks_of_families(text: str, templates: list[ChatTemplate]) -> None:
    assert shown(text, templates) == SNIPPETS[text]


@pytest.mark.parametrize("text", SHOWN)
def test_forms_that_templates_show(text: str) -> None:
    found = AnswerFormat.of_template(text)
    assert (found.thoughts, found.calls) == SHOWN[text]


def test_a_warning_names_the_family(templates: list[ChatTemplate]) -> None:
    templates.append(ChatTemplate({"default": "{{ tools }}<response><function_calls>"}, {}, TemplateLimits()))
    reasoning, calls = map(str, templates[0].unparsed_forms())
    assert reasoning == "reasoning in Granite 3's form is not taken apart yet: it stays in the content"
    assert calls == "tool calls in OLMo 3's form are not taken apart yet: requests with tools are refused"


def test_a_model_without_a_template_has_none() -> None:
    assert ChatTemplate({}, {}, TemplateLimits()).unparsed_forms() == []


def test_architectures_are_those_that_can_be_served(capsys: pytest.CaptureFixture[str]) -> None:
    notes = {name: unparsed(name) for name in ARCHITECTURES}
    assert notes["Olmo3ForCausalLM"] == "not taken apart yet: tool calls"
    assert notes["GptOssForCausalLM"] == notes["SmolLM3ForCausalLM"] == notes["Qwen3ForCausalLM"] == ""
    list_models([])
    assert "not taken apart yet: Python calls of Llama 3.2" in capsys.readouterr().out
