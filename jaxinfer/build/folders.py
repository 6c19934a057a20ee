"""Folders of a model and of its text side, by the names that settings give them. No jax."""

from pathlib import Path

from jaxinfer.config import EngineConfig
from jaxinfer.text import TextProcessor
from jaxinfer.text.tokenizer.tokenizer import MAX_PROMPT_CHARS

DEMO_FOLDER = Path(__file__).parents[1] / "demo"


def model_folder(config: EngineConfig) -> Path:
    """The local folder of the model, fetched from the hub where it is named so. Raises ModelError."""
    return named_folder(config.model, config.load.revision, "config.json")


def own_tokenizer(config: EngineConfig) -> Path | None:
    """Return the folder of a tokenizer that settings name; None: the model's own is used. Raises ModelError."""
    name = config.load.tokenizer
    return None if name is None else named_folder(name, None, "tokenizer.json")


def named_folder(name: str, revision: str | None, needs: str) -> Path:
    """Return the folder of that name in the package, on this machine or on the hub. needs: a file that it must have.
    Raises ModelError."""
    from jaxinfer.checkpoint.source import DEMO_DRAFTERS, DEMO_NAME, resolve

    if name in (DEMO_NAME, *DEMO_DRAFTERS):
        return DEMO_FOLDER.parent / name
    return resolve(name, revision, needs=needs)


def load_text(
    config: EngineConfig, *, max_chars: int = MAX_PROMPT_CHARS, control_tokens_in_content: bool = False
) -> TextProcessor:
    """The model's text side: its own tokenizer and chat template, or those that the settings name.

    max_chars: characters of one prompt. control_tokens_in_content: of TextProcessor. Raises ModelError.
    """
    folder = model_folder(config)
    return TextProcessor.from_folder(
        folder,
        tokenizer=own_tokenizer(config) or folder,
        max_chars=max_chars,
        control_tokens_in_content=control_tokens_in_content,
        chat_template=config.load.chat_template,
        default_chat_template_kwargs=config.load.template_kwargs,
    )
