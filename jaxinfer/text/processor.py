"""TextProcessor: everything of a model folder that turns text into tokens and back."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxinfer.text.chat_template import ChatTemplate
from jaxinfer.text.defaults import GenerationDefaults
from jaxinfer.text.fim import FillInTheMiddle
from jaxinfer.text.template_process import TemplateLimits
from jaxinfer.text.tokenizer import MAX_PROMPT_CHARS, Tokenizer

SHORT_CHARS = 4096
"""Characters that are tokenised on the event loop: below this a thread costs more than the work."""


@dataclass(frozen=True)
class TextProcessor:
    """Tokenizer, chat template, fill-in-the-middle prompts and default sampling parameters of one model."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate
    defaults: GenerationDefaults
    fim: FillInTheMiddle

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        tokenizer: Path | None = None,
        max_chars: int = MAX_PROMPT_CHARS,
        template_limits: TemplateLimits | None = None,
    ) -> "TextProcessor":
        """Reads a model's folder in Hugging Face layout. tokenizer: another folder, whose tokenizer and chat template
        are used instead of the model's own. Raises ModelError.
        """
        own = Tokenizer(tokenizer or folder, max_chars=max_chars)
        limits = template_limits or TemplateLimits(max_chars=max_chars)
        template = ChatTemplate.from_tokenizer(own, limits)
        return cls(own, template, GenerationDefaults.from_folder(folder), FillInTheMiddle(own))

    def settings(self) -> dict[str, Any]:
        """What `from_settings` makes the same of in another process, as plain values."""
        return {
            "folder": str(self.tokenizer.folder),
            "max_chars": self.tokenizer.max_chars,
            "template_limits": dataclasses.asdict(self.chat_template.limits),
            "defaults": dataclasses.asdict(self.defaults),
        }

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> "TextProcessor":
        """The text side that `settings` describe. Raises ModelError."""
        tokenizer = Tokenizer(Path(settings["folder"]), max_chars=settings["max_chars"])
        template = ChatTemplate.from_tokenizer(tokenizer, TemplateLimits(**settings["template_limits"]))
        return cls(tokenizer, template, GenerationDefaults(**settings["defaults"]), FillInTheMiddle(tokenizer))

    async def encode_async(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, params: Sequence[str]
    ) -> list[list[int]]:
        """`Tokenizer.encode_batch`, off the event loop where the texts are long."""
        for text, param in zip(texts, params, strict=True):
            self.tokenizer.check_text(text, param)
        if sum(map(len, texts)) <= SHORT_CHARS:
            return self.tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens, params=params)
        return await asyncio.to_thread(
            self.tokenizer.encode_batch, texts, add_special_tokens=add_special_tokens, params=params
        )

    async def fim_prompt(self, prefix: str, suffix: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a prompt that asks for what stands between two texts. Raises ParameterError."""
        before, after = await self.encode_async([prefix, suffix], add_special_tokens=False, params=["prompt", "suffix"])
        start = self.tokenizer.encode("")[:1] if add_special_tokens else []
        return self.fim.prompt_ids(before, after, [token for token in start if token == self.tokenizer.bos_token_id])

    def close(self) -> None:
        """Ends the processes that render templates."""
        self.chat_template.close()
