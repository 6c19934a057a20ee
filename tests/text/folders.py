"""Tokenizer folders made on the spot, for tests that need no shared material."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("\u0120", "w"), ("o", "r"), ("l", "d")]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}{{ style }}"
)
SPECIAL = ["<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def byte_level_folder(folder: Path, *, chat_template: object = CHAT_TEMPLATE, **config: object) -> Path:
    """A byte-level BPE tokenizer of 256 bytes, seven merges and five special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, *("".join(merge) for merge in MERGES)])}
    backend = Tokenizer(BPE(vocab=vocab, merges=MERGES))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|bos|>", "eos_token": "<|end|>", "chat_template": chat_template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def with_bos(folder: Path) -> Path:
    """Lets the post-processor put BOS before a text."""
    file = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    bos = ("<|bos|>", backend.token_to_id("<|bos|>"))
    backend.post_processor = TemplateProcessing(single="<|bos|> $A", pair=None, special_tokens=[bos])
    backend.save(str(file))
    return folder


def with_tokens(folder: Path, *names: str, special: bool = False) -> Path:
    """Adds control tokens; as in Qwen's files, they are not called special by default."""
    file = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    backend.add_tokens([AddedToken(name, special=special, normalized=False) for name in names])
    backend.save(str(file))
    return folder


def panicking(folder: Path) -> Path:
    """A tokenizer whose regular expression gives up on some texts, which the package takes for a bug of its own."""
    fields = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    fields["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, fields["pre_tokenizer"]]}
    (folder / "tokenizer.json").write_text(json.dumps(fields))
    return folder
