"""Fill in the middle: prompts from the text before a gap and the text after it, for models trained on them."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxinfer.errors import ParameterError
from jaxinfer.text.tokenizer.tokenizer import Tokenizer


class FimFormat(NamedTuple):
    """The control tokens of one family.

    parts: what stands before the prefix, before the suffix and before the middle; `` where nothing does.
    suffix_first: the suffix comes before the prefix. ends: tokens that end a middle, beside end-of-sequence ones.
    """

    parts: tuple[str, str, str]
    suffix_first: bool = False
    ends: tuple[str, ...] = ()


FORMATS = (
    # Qwen2.5-Coder and later (technical report, section 3.1), CodeGemma (its model card).
    FimFormat(
        ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder, StarCoder2 and SantaCoder (arXiv:2305.06161, 2301.03988).
    FimFormat(("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), ends=("<file_sep>",)),
    FimFormat(("<fim-prefix>", "<fim-suffix>", "<fim-middle>")),
    # DeepSeek-Coder and DeepSeek-V2 and later (arXiv:2401.14196, section 3.1.2).
    FimFormat(("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>")),
    # GLM-4 and its code models.
    FimFormat(("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")),
    # Codestral (mistral-common's InstructTokenizer.encode_fim).
    FimFormat(("[PREFIX]", "[SUFFIX]", ""), suffix_first=True),
)


class FillInTheMiddle:
    """The prompts of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._format = next((form for form in FORMATS if self._has(form)), None)

    @property
    def exists(self) -> bool:
        """False where the tokenizer has no tokens for it."""
        return self._format is not None

    @property
    def end_ids(self) -> list[int]:
        """Ids that end a middle, beside the model's end-of-sequence ones."""
        names = () if self._format is None else self._format.ends
        return [self._tokenizer.added_ids[name] for name in names if name in self._tokenizer.added_ids]

    def prompt_ids(self, prefix: Sequence[int], suffix: Sequence[int], start: Sequence[int] = ()) -> list[int]:
        """The prompt's ids. start: what begins every prompt of the tokenizer. Raises ParameterError."""
        if self._format is None:
            raise ParameterError("suffix", "needs a model whose tokenizer has tokens for filling in the middle")
        before_prefix, before_suffix, before_middle = map(self._ids, self._format.parts)
        first, second = [*before_prefix, *prefix], [*before_suffix, *suffix]
        if self._format.suffix_first:
            first, second = second, first
        return [*start, *first, *second, *before_middle]

    def _has(self, form: FimFormat) -> bool:
        return all(part in self._tokenizer.added_ids for part in form.parts if part)

    def _ids(self, part: str) -> list[int]:
        return [self._tokenizer.added_ids[part]] if part else []
