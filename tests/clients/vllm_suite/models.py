"""The models that stand for those of the tests, made of the demo model: nothing is fetched.

- `chat`: the demo model with a context of 16,384 tokens, a template that takes any role, and its special tokens after
  all others, as in most vocabularies: tests take id 0 for text.
- `thinking`: the same with a template that thinks unless told otherwise, as Qwen3's does.
- `base`: the same tokenizer over random weights. It goes on after any text, where the demo model, which knows
  conversations only, ends at once.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

CONTEXT = 16384
THINKING = "{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}"
REFUSED_ROLE = (
    "{{- raise_exception('The demo model knows the roles system, user, assistant and tool, not ' ~ message.role) }}"
)
ANY_ROLE = "{{- '<|im_start|>' ~ message.role ~ '\\n' ~ text(message.content) ~ '<|im_end|>\\n' }}"
EMBEDDING = "model.embed_tokens.weight"
# Rows of the embedding are also the head's: logits get a standard deviation of about 3, so that the likeliest is clear.
LOGIT_DEVIATION = 3.0


def make_models(demo: Path, folder: Path) -> None:
    """Writes `chat`, `thinking` and `base` below `folder`."""
    tokenizer = json.loads((demo / "tokenizer.json").read_text())
    rotation = Rotation(len(tokenizer["added_tokens"]), len(tokenizer["model"]["vocab"]))
    tensors = load_file(demo / "model.safetensors")
    tensors[EMBEDDING] = np.roll(tensors[EMBEDDING], -rotation.special, axis=0)
    settings = {
        "tokenizer.json": rotation.of_tokenizer(tokenizer),
        "tokenizer_config.json": rotation.of_tokenizer_config(json.loads((demo / "tokenizer_config.json").read_text())),
        "config.json": rotation.of_ids(json.loads((demo / "config.json").read_text())),
        "generation_config.json": rotation.of_ids(_ends(json.loads((demo / "generation_config.json").read_text()))),
    }
    settings["config.json"]["max_position_embeddings"] = CONTEXT
    settings["tokenizer_config.json"] |= {
        "model_max_length": CONTEXT,
        "chat_template": _with_any_role(settings["tokenizer_config.json"]["chat_template"]),
    }
    _write(folder / "chat", settings, tensors)
    _write(folder / "thinking", _thinking(settings), tensors)
    _write(folder / "base", settings, _random(tensors, settings["tokenizer.json"]))


class Rotation:
    """Token ids when the `special` first tokens go behind all others."""

    def __init__(self, special: int, size: int):
        self.special, self.size = special, size

    def __call__(self, token: int) -> int:
        return (token - self.special) % self.size

    def of_tokenizer(self, fields: dict[str, Any]) -> dict[str, Any]:
        added = [{**token, "id": self(token["id"])} for token in fields["added_tokens"]]
        vocab = {token: self(number) for token, number in fields["model"]["vocab"].items()}
        return {**fields, "added_tokens": added, "model": {**fields["model"], "vocab": vocab}}

    def of_tokenizer_config(self, fields: dict[str, Any]) -> dict[str, Any]:
        decoder = {str(self(int(number))): token for number, token in fields["added_tokens_decoder"].items()}
        return {**fields, "added_tokens_decoder": decoder}

    def of_ids(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A config with the ids that its fields `…_token_id` hold."""
        return {name: self._of_id(value) if name.endswith("_token_id") else value for name, value in fields.items()}

    def _of_id(self, value: int | list[int] | None) -> int | list[int] | None:
        if value is None:
            return None
        return [self(token) for token in value] if isinstance(value, list) else self(value)


def _with_any_role(template: str) -> str:
    if REFUSED_ROLE not in template:
        raise ValueError("chat_template of the demo model: the refusal of other roles is not where it was")
    return template.replace(REFUSED_ROLE, ANY_ROLE)


def _thinking(settings: dict[str, Any]) -> dict[str, Any]:
    tokenizer = settings["tokenizer_config.json"]
    return {**settings, "tokenizer_config.json": {**tokenizer, "chat_template": THINKING + tokenizer["chat_template"]}}


def _ends(fields: dict[str, Any]) -> dict[str, Any]:
    """Without the demo model's temperature, top-k and top-p: the tests ask for samples that differ."""
    return {name: value for name, value in fields.items() if name.endswith("_token_id")}


def _random(tensors: dict[str, np.ndarray], tokenizer: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random weights of the same shapes; tokens that are not printable text are never likely."""
    generator = np.random.default_rng(0)
    weights = {name: _random_tensor(generator, name, value.shape) for name, value in tensors.items()}
    hidden = weights[EMBEDDING].shape[1]
    weights[EMBEDDING] *= LOGIT_DEVIATION / np.sqrt(hidden)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    for token, number in tokenizer["model"]["vocab"].items():
        if token in special or not token.replace("\u0120", "").isascii() or not token.isprintable():
            weights[EMBEDDING][number] *= 0.01
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in weights.items()}


def _random_tensor(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape)
    return generator.normal(size=shape) / (1 if name == EMBEDDING else np.sqrt(shape[1]))


def _write(folder: Path, settings: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True)
    for name, fields in settings.items():
        (folder / name).write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
