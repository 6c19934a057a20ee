"""Chat templates: rendered as transformers renders them, under limits, in a process that can be lost."""

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.text import Tokenizer
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.template_process import TemplateLimits
from tests.material import material
from tests.text.folders import byte_level_folder
from tests.text.golden_templates import GOLDEN_TEMPLATES

USER = [{"role": "user", "content": "hi"}]
LIMITS = TemplateLimits(cpu_seconds=1, wall_seconds=20)


@pytest.fixture
def template() -> Iterator[Callable[..., ChatTemplate]]:
    made: list[ChatTemplate] = []

    def make(text: str, limits: TemplateLimits = LIMITS, **special: str) -> ChatTemplate:
        made.append(ChatTemplate({"default": text}, special, limits))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("name", GOLDEN_TEMPLATES)
def test_renders_what_transformers_renders(name: str, template: Callable[..., ChatTemplate]) -> None:
    golden = json.loads(material("chat_templates", "golden_renders.json").read_text())
    renders = next(entry["renders"] for entry in golden["templates"] if entry["template"] == name)
    chat = template(material("chat_templates", name).read_text(), bos_token="<BOS>", eos_token="<EOS>")
    for context, expected in renders.items():
        if isinstance(expected, dict):  # we leave out the kind of an error that a template raises itself
            expected = {"error": expected["error"].removeprefix("TemplateError: ")}
        assert render_context(chat, golden["contexts"][context]) == expected, context


def test_every_template_with_a_golden_render_is_tested() -> None:
    golden = json.loads(material("chat_templates", "golden_renders.json").read_text())
    assert [entry["template"] for entry in golden["templates"]] == GOLDEN_TEMPLATES


def render_context(chat: ChatTemplate, context: dict[str, Any]) -> str | dict[str, str]:
    rest = {name: value for name, value in context.items() if name not in ("messages", "tools", "_gen")}
    options = {"tools": context.get("tools"), "add_generation_prompt": context.get("_gen", True)}
    if options["tools"] and not chat.takes_tools:
        # transformers drops them in silence; we refuse, and render the rest as it does.
        with pytest.raises(ParameterError, match="tools: are not taken"):
            chat.render(context["messages"], **options)
        options["tools"] = None
    try:
        return chat.render(context["messages"], template_kwargs=rest, now=datetime(2025, 7, 26), **options)
    except ParameterError as error:
        return {"error": error.message.removeprefix("the chat template does not take them: ")}


RESERVED = ["messages", "tokenize", "tools", "add_generation_prompt", "bos_token", "chat_template"]
BOMBS = {
    "memory": ("{{ 'a' * 10**10 }}", "more than 512 MiB of memory"),
    "output": ("{% for i in range(90000) %}{{ 'a' * 9999 }}{% endfor %}", "of memory|characters"),
    "time": ("{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}", "1 s of processor time"),
    "recursion": ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_template_bomb_is_the_requests_error_and_the_next_one_renders(
    kind: str, template: Callable[..., ChatTemplate]
) -> None:
    bomb, message = BOMBS[kind]
    chat = template("{% if messages[0].content == 'boom' %}" + bomb + "{% else %}fine{% endif %}")
    with pytest.raises(ParameterError, match=message):
        chat.render([{"role": "user", "content": "boom"}])
    assert chat.render(USER) == "fine"


@pytest.mark.parametrize("text", ["{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"])
def test_a_template_runs_in_an_immutable_sandbox(text: str, template: Callable[..., ChatTemplate]) -> None:
    with pytest.raises(ParameterError, match="SecurityError"):
        template(text).render(USER)


def test_a_template_that_does_not_compile_is_the_models_error(template: Callable[..., ChatTemplate]) -> None:
    with pytest.raises(ModelError, match="TemplateSyntaxError"):
        template("{% if %}").render(USER)


@pytest.mark.parametrize("name", RESERVED)
def test_template_arguments_cannot_override_what_the_server_sets(
    name: str, template: Callable[..., ChatTemplate]
) -> None:
    chat = template("".join(f"{{{{ {reserved} }}}}" for reserved in RESERVED))
    with pytest.raises(ParameterError) as error:
        chat.render(USER, template_kwargs={name: "x"})
    assert error.value.param == f"chat_template_kwargs.{name}"


def test_template_arguments_are_those_that_the_template_reads(template: Callable[..., ChatTemplate]) -> None:
    chat = template("{{ style }}{{ enable_thinking }}")
    assert chat.render(USER, template_kwargs={"style": "plain", "enable_thinking": False}) == "plainFalse"
    with pytest.raises(ParameterError, match="this model allows: enable_thinking, style, thinking"):
        chat.render(USER, template_kwargs={"other": 1})


def test_what_templates_expect_of_transformers_is_there(template: Callable[..., ChatTemplate]) -> None:
    text = (
        "{{ {'b': '<é>', 'a': 1} | tojson }} {{ strftime_now('%Y') }} "
        "{% generation %}x{% endgeneration %}"
        "{% for i in range(9) %}{% if i > 1 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert template(text).render(USER, now=datetime(2031, 1, 1)) == '{"b": "<é>", "a": 1} 2031 x01'


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    chat = ChatTemplate.from_tokenizer(Tokenizer(byte_level_folder(tmp_path, chat_template=None)))
    with pytest.raises(ParameterError, match="messages: the model has no chat template"):
        chat.render(USER)
