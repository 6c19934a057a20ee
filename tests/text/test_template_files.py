"""Chat templates: the places where a model's folder keeps them, those that a flag names, and default arguments."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.config import ModelConfig
from jaxinfer.errors import ModelError, ParameterError
from jaxinfer.text import TextProcessor, Tokenizer
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.files import built_in_templates, load_chat_templates, named_chat_templates
from jaxinfer.text.template.template_process import TemplateLimits
from tests.material import material
from tests.text.folders import byte_level_folder

USER = [{"role": "user", "content": "hi"}]
NAMED = [{"name": "default", "template": "named"}, {"name": "tool_use", "template": "tools"}]
PLACES = {
    "none": ({}, None, {}),
    "a text": ({}, "text", {"default": "text"}),
    "names": ({}, NAMED, {"default": "named", "tool_use": "tools"}),
    "an object of names": ({}, {"default": "x", "rag": "y"}, {"default": "x", "rag": "y"}),
    "chat_template.json": ({"chat_template.json": '{"chat_template": "old"}'}, "text", {"default": "old"}),
    "processor_config.json": ({"processor_config.json": '{"chat_template": "p"}'}, "text", {"default": "p"}),
    "an empty processor_config.json": ({"processor_config.json": '{"x": 1}'}, "text", {"default": "text"}),
    "chat_template.jinja": (
        {"chat_template.jinja": "file", "chat_template.json": '{"chat_template": "old"}'},
        NAMED,
        {"default": "file"},
    ),
    "additional templates": (
        {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"},
        "text",
        {"default": "file", "tool_use": "tools"},
    ),
    "additional templates alone": ({"additional_chat_templates/rag.jinja": "r"}, "text", {"rag": "r"}),
}


def folder_of(name: str, folder: Path) -> Path:
    files, declared, _ = PLACES[name]
    byte_level_folder(folder, chat_template=declared)
    for file, content in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(content)
    return folder


@pytest.mark.parametrize("name", PLACES)
def test_the_first_place_that_has_a_template_counts(name: str, tmp_path: Path) -> None:
    folder = folder_of(name, tmp_path)
    assert load_chat_templates(folder, Tokenizer(folder).config) == PLACES[name][2]


@pytest.mark.parity
@pytest.mark.parametrize("name", [name for name in PLACES if ".json" not in name])
def test_transformers_reads_the_same_templates(name: str, tmp_path: Path) -> None:
    """Its tokenizers do; chat_template.json and processor_config.json are read by its processors."""
    transformers = pytest.importorskip("transformers")
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder_of(name, tmp_path)).chat_template
    assert PLACES[name][2] == ({"default": theirs} if isinstance(theirs, str) else theirs or {})


@pytest.mark.parametrize("wrong", [5, [{"name": "default"}], [["a", 1]], {"default": 1}])
def test_a_wrong_template_names_the_file(wrong: object, tmp_path: Path) -> None:
    byte_level_folder(tmp_path, chat_template=wrong)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template must be a text, or a list"):
        load_chat_templates(tmp_path, Tokenizer(tmp_path).config)


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "", "a b", "\ud800"])
def test_a_templates_name_may_be_a_files(name: str, tmp_path: Path) -> None:
    byte_level_folder(tmp_path, chat_template={name: "text"})
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template has .* must be letters"):
        load_chat_templates(tmp_path, Tokenizer(tmp_path).config)


def test_a_flag_names_a_file_a_template_of_the_model_or_a_built_in_one(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("mine")
    assert named_chat_templates(str(tmp_path / "mine.jinja"), {"rag": "r"}) == {"default": "mine"}
    assert named_chat_templates("rag", {"rag": "r"}) == {"default": "r"}
    assert built_in_templates() == ["chatml", "gemma", "llama3", "mistral"]
    assert "<|im_start|>" in named_chat_templates("chatml", {})["default"]
    with pytest.raises(ParameterError, match=r"chat_template: 'no' must be a file .* or one of chatml, gemma, .* rag"):
        named_chat_templates("no", {"rag": "r"})


TALK = [
    {"role": "system", "content": "You are terse."},
    {"role": "user", "content": " Hi "},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
BESIDE = {
    "chatml": ("Qwen-Qwen2.5-7B-Instruct.jinja", TALK),
    "gemma": ("google-gemma-2-2b-it.jinja", TALK[1:]),
    "mistral": ("mistralai-Mistral-Nemo-Instruct-2407.jinja", TALK),
}


def rendered(templates: Mapping[str, str], messages: list[dict[str, Any]], **options: Any) -> str:
    chat = ChatTemplate(templates, {"bos_token": "<s>", "eos_token": "</s>"}, TemplateLimits())
    try:
        return chat.render(messages, **options)
    finally:
        chat.close()


@pytest.mark.parametrize("name", BESIDE)
def test_built_in_templates_write_what_models_of_the_family_write(name: str) -> None:
    file, messages = BESIDE[name]
    theirs = {"default": material("chat_templates", file).read_text()}
    assert rendered(named_chat_templates(name, {}), messages) == rendered(theirs, messages)


def test_the_built_in_llama3_writes_headers() -> None:
    assert rendered(named_chat_templates("llama3", {}), TALK[:2]) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nYou are terse.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_the_built_in_chatml_has_tools_and_writes_calls_as_qwen_does() -> None:
    call = {"function": {"name": "f", "arguments": {"a": [1, "é"]}}}
    history = [*TALK[:2], {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "7"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    text = rendered(named_chat_templates("chatml", {}), history, tools=tools)
    qwen = {"default": material("chat_templates", "Qwen-Qwen2.5-7B-Instruct.jinja").read_text()}
    theirs = rendered(qwen, history, tools=tools)
    after = "<|im_start|>user\n Hi"
    assert text[text.index(after) :] == theirs[theirs.index(after) :]
    assert json.dumps(tools[0]) in text


KWARGS = "{{ style }}|{{ enable_thinking }}|{{ thinking }}"


@pytest.fixture
def chat() -> Any:
    made = ChatTemplate({"default": KWARGS}, {}, TemplateLimits(), {"style": "plain", "enable_thinking": False})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "plain|False|"),
        ({"style": "bold"}, "bold|False|"),
        ({"enable_thinking": True}, "plain|True|"),
        ({"thinking": True}, "plain||True"),  # who switches thinking sets both names
    ],
)
def test_requests_override_default_arguments(chat: ChatTemplate, given: dict[str, Any], text: str) -> None:
    assert chat.render(USER, template_kwargs=given) == text


def test_default_arguments_that_the_template_does_not_read_are_refused(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path)
    with pytest.raises(ParameterError, match=r"default_chat_template_kwargs\.other: is not allowed; this model allows"):
        TextProcessor.from_folder(folder, default_chat_template_kwargs={"other": 1})


@pytest.mark.parametrize("text", ["{", "[1]", "5"])
def test_default_arguments_are_a_json_object(text: str) -> None:
    with pytest.raises(ParameterError, match="default_chat_template_kwargs: must be"):
        ModelConfig(default_chat_template_kwargs=text)


def test_another_process_makes_the_same_templates(tmp_path: Path) -> None:
    folder = byte_level_folder(tmp_path)
    text = TextProcessor.from_folder(
        folder, chat_template="llama3", default_chat_template_kwargs={"enable_thinking": False}
    )
    other = TextProcessor.from_settings(text.settings())
    assert other.chat_template.templates == text.chat_template.templates == named_chat_templates("llama3", {})
    assert other.chat_template.default_kwargs == {"enable_thinking": False}
    text.close()
    other.close()
