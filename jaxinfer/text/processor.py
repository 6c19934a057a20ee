"""TextProcessor: everything of a model folder that turns text into tokens and back."""

import asyncio
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.text.defaults import GenerationDefaults
from jaxinfer.text.fim import FillInTheMiddle
from jaxinfer.text.template.chat_template import ChatTemplate
from jaxinfer.text.template.conversation_ids import SHORT_CHARS, ConversationEncoder
from jaxinfer.text.template.template_process import TemplateLimits
from jaxinfer.text.tokenizer.tokenizer import MAX_PROMPT_CHARS, Tokenizer


@dataclass(frozen=True)
class TextProcessor:
    """Tokenizer, chat template, fill-in-the-middle prompts and default sampling parameters of one model.

    control_tokens_in_content: control tokens that a conversation's strings hold are control tokens, not text.
    """

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    defaults: GenerationDefaults
    fim: FillInTheMiddle
    control_tokens_in_content: bool = False

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        tokenizer: Path | None = None,
        max_chars: int = MAX_PROMPT_CHARS,
        template_limits: TemplateLimits | None = None,
        control_tokens_in_content: bool = False,
        chat_template: str | None = None,
        default_chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> "TextProcessor":
        """Reads a model's folder in Hugging Face layout. tokenizer: another folder, whose tokenizer and chat template
        are used instead of the model's own. chat_template: another template; see `named_chat_templates`.
        default_chat_template_kwargs: of `ChatTemplate`. Raises ModelError, and ParameterError for the last two.
        """
        own = Tokenizer(tokenizer or folder, max_chars=max_chars)
        limits = template_limits or TemplateLimits(max_chars=max_chars)
        template = ChatTemplate.from_tokenizer(
            own, limits, asked=chat_template, default_kwargs=default_chat_template_kwargs
        )
        if default_chat_template_kwargs:
            template.check()
        defaults, fim = GenerationDefaults.from_folder(folder), FillInTheMiddle(own)
        return cls(own, template, defaults, fim, control_tokens_in_content)

    @property
    def conversations(self) -> ConversationEncoder:
        """Encoder of conversations as token ids."""
        return ConversationEncoder(self.chat_template, self.tokenizer, trusting=self.control_tokens_in_content)

    def settings(self) -> dict[str, Any]:
        """Return plain values from which `from_settings` builds an equal processor in another process."""
        return {
            "folder": str(self.tokenizer.folder),
            "max_chars": self.tokenizer.max_chars,
            "template_limits": dataclasses.asdict(self.chat_template.limits),
            "templates": self.chat_template.templates,
            "default_kwargs": self.chat_template.default_kwargs,
            "defaults": dataclasses.asdict(self.defaults),
            "control_tokens_in_content": self.control_tokens_in_content,
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "TextProcessor":
        """The text side that `settings` describe. Raises ModelError."""
        tokenizer = Tokenizer(Path(settings["folder"]), max_chars=settings["max_chars"])
        limits, default_kwargs = TemplateLimits(**settings["template_limits"]), settings["default_kwargs"]
        template = ChatTemplate(settings["templates"], tokenizer.special_tokens, limits, default_kwargs)
        defaults, fim = GenerationDefaults(**settings["defaults"]), FillInTheMiddle(tokenizer)
        return cls(tokenizer, template, defaults, fim, settings["control_tokens_in_content"])

    async def encode_async(
        self,
        texts: Sequence[str],
        *,
        add_special_tokens: bool = True,
        params: Sequence[str],
        parse_special: bool = True,
        most: int | None = None,
    ) -> list[list[int]]:
        """`Tokenizer.encode_batch`, off the event loop where the texts are long."""
        for text, param in zip(texts, params, strict=True):
            self.tokenizer.check_text(text, param)
        encode = functools.partial(
            self.tokenizer.encode_batch,
            texts,
            add_special_tokens=add_special_tokens,
            params=params,
            parse_special=parse_special,
            most=most,
        )
        if sum(map(len, texts)) <= SHORT_CHARS:
            return encode()
        return await asyncio.to_thread(encode)

    async def fim_prompt(
        self, prefix: str, suffix: str, *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Ids of a prompt that asks for what stands between two texts. Raises ParameterError."""
        before, after = await self.encode_async(
            [prefix, suffix], add_special_tokens=False, params=["prompt", "suffix"], parse_special=parse_special
        )
        start = self.tokenizer.encode("")[:1] if add_special_tokens else []
        return self.fim.prompt_ids(before, after, [token for token in start if token == self.tokenizer.bos_token_id])

    def close(self) -> None:
        """Ends the processes that render templates."""
        self.chat_template.close()
