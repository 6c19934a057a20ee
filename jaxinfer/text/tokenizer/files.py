"""TokenizerFiles: what the files of a tokenizer's folder say together, by transformers' order of precedence.

README.md has the table. The reference is transformers 5.23.0's `PreTrainedTokenizerFast`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken

from jaxinfer.errors import ModelError, quoted
from jaxinfer.folder_files import is_there, read_object

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Names of special tokens that every tokenizer may have."""

_REFERENCE = (5, 23, 0)
_VERSIONED = re.compile(r"tokenizer\.(\d+(?:\.\d+)*)\.json")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_SHAPES: dict[str, tuple[type, ...]] = {
    "additional_special_tokens": (list,),
    "extra_special_tokens": (list, dict),
    "fast_tokenizer_files": (list,),
    "model_specific_special_tokens": (dict,),
}
_SHAPE_NAMES = {list: "a list", dict: "an object"}

Token = str | AddedToken


class TokenizerFiles(NamedTuple):
    """A tokenizer's folder as it declares itself.

    file: the tokenizer itself, tokenizer.json or a version of it. config: tokenizer_config.json as it stands. settings:
    `config` with what special_tokens_map.json says instead. named: special tokens by name, `bos_token` and the model's
    own, such as `image_token`. extra: special tokens without a name. added: tokens with the ids that the folder gives
    them.
    """

    file: Path
    config: dict[str, Any]
    settings: dict[str, Any]
    named: dict[str, Token]
    extra: list[Token]
    added: dict[int, AddedToken]

    @classmethod
    def of(cls, folder: Path) -> "TokenizerFiles":
        """Read a folder. Raises ModelError that names the file and the field."""
        config = _read_settings(folder, "tokenizer_config.json")
        # NOTE: tokenizer.json's post-processor decides which tokens stand around a text, whatever stands beside it.
        settings = _with_own_names(_with_extra(_without(config, "add_bos_token", "add_eos_token")))
        added: dict[int, AddedToken] = {}
        if config.get("added_tokens_decoder") is not None:
            added = _decoder(folder, config["added_tokens_decoder"])
        else:
            settings = _with_map(settings, _read_settings(folder, "special_tokens_map.json"))
            added = _added(folder, _plain_texts(settings))
        if "extra_special_tokens" not in settings:
            settings = _with_extra(settings)
        named, extra = _named(folder, settings), _extra(folder, settings)
        return cls(_tokenizer_file(folder, config), config, settings, named, extra, added)

    @property
    def special_tokens(self) -> dict[str, str]:
        """The texts of named tokens."""
        return {name: _text(token) for name, token in self.named.items()}

    def to_add(self, known: Mapping[int, AddedToken]) -> list[AddedToken]:
        """Tokens that a tokenizer is given, some of which change flags of those that it has. known: those that it has.

        A declared token counts with its flags, and is special if it has a name. One that is only named, or extra, is
        added where no other has its text.
        """
        declared = self.added if self.config.get("added_tokens_decoder") is not None else {**self.added, **known}
        in_order = [token for _, token in sorted(declared.items())]
        texts = {token.content for token in (*known.values(), *in_order)}
        others = [token for token in (*self.named.values(), *self.extra) if _text(token) not in texts]
        found = [*in_order, *(AddedToken(token, special=True) if isinstance(token, str) else token for token in others)]
        names = set(self.special_tokens.values())
        for token in found:
            token.special = token.special or token.content in names
        return found


def _read(folder: Path, name: str) -> dict[str, Any]:
    return read_object(folder / name) if is_there(folder / name) else {}


def _read_settings(folder: Path, name: str) -> dict[str, Any]:
    """Read an object whose special tokens have the shapes that they may have."""
    found = _read(folder, name)
    for key, shapes in _SHAPES.items():
        if found.get(key) is not None and not isinstance(found[key], shapes):
            allowed = " or ".join(_SHAPE_NAMES[shape] for shape in shapes)
            raise ModelError(f"{folder / name}: {key} must be {allowed}, not {quoted(found[key])}")
    for key in NAMED:
        if found.get(key) is not None:
            _token(folder / name, key, found[key])
    return found


def _tokenizer_file(folder: Path, config: Mapping[str, Any]) -> Path:
    """tokenizer.json, or the newest of `fast_tokenizer_files` that is for the reference's version or an older one."""
    name = "tokenizer.json"
    versions = config.get("fast_tokenizer_files") or []
    for listed in sorted(text for text in versions if isinstance(text, str)):
        found = _VERSIONED.fullmatch(listed)
        if found is not None and tuple(map(int, found[1].split("."))) <= _REFERENCE:
            name = listed
    return folder / name


def _with_extra(settings: dict[str, Any]) -> dict[str, Any]:
    """`additional_special_tokens`, the older name, counts where the newer one holds nothing."""
    if "additional_special_tokens" not in settings or settings.get("extra_special_tokens"):
        return settings
    older = settings["additional_special_tokens"]
    return {**_without(settings, "additional_special_tokens"), "extra_special_tokens": older}


def _with_own_names(settings: dict[str, Any]) -> dict[str, Any]:
    """The model's own names, as keys that end so or in an object of extra tokens, in one object."""
    own = {key: value for key, value in settings.items() if _is_own_name(key) and isinstance(value, str)}
    extra = settings.get("extra_special_tokens")
    if isinstance(extra, dict):
        own, settings = {**own, **extra}, _without(settings, "extra_special_tokens")
    return {**_without(settings, *own), "model_specific_special_tokens": own} if own else settings


def _with_map(settings: dict[str, Any], special_map: dict[str, Any]) -> dict[str, Any]:
    """special_tokens_map.json goes before tokenizer_config.json, but its list of extra tokens adds to the other's."""
    merged = {**settings, **special_map}
    newer, older = special_map.get("extra_special_tokens"), settings.get("extra_special_tokens")
    if isinstance(newer, list) and isinstance(older, list):
        merged["extra_special_tokens"] = [*older, *(token for token in newer if token not in older)]
    if isinstance(newer, dict):
        own = merged.get("model_specific_special_tokens") or {}
        merged = {**_without(merged, "extra_special_tokens"), "model_specific_special_tokens": {**own, **newer}}
    return merged


def _named(folder: Path, settings: Mapping[str, Any]) -> dict[str, Token]:
    own = {key: value for key, value in settings.items() if _is_own_name(key) and isinstance(value, str | dict)}
    for key in ("model_specific_special_tokens", "extra_special_tokens"):
        if isinstance(settings.get(key), dict):
            own.update(settings[key])
    standard = {name: settings[name] for name in NAMED if settings.get(name) is not None}
    return {name: _token(folder / "tokenizer_config.json", name, value) for name, value in {**standard, **own}.items()}


def _is_own_name(key: str) -> bool:
    return key.endswith("_token") and key not in NAMED


def _extra(folder: Path, settings: Mapping[str, Any]) -> list[Token]:
    found = settings.get("extra_special_tokens") or []
    file = folder / "tokenizer_config.json"
    return [] if isinstance(found, dict) else [_token(file, "extra_special_tokens", value) for value in found]


def _decoder(folder: Path, declared: Any) -> dict[int, AddedToken]:
    if not declared:
        return {}
    try:
        return {int(token_id): _added_token(spec) for token_id, spec in declared.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        message = "added_tokens_decoder must map ids to objects that have a content"
        raise ModelError(f"{folder / 'tokenizer_config.json'}: {message}") from None


def _plain_texts(settings: Mapping[str, Any]) -> set[str]:
    """Special tokens that the settings give as texts, or that special_tokens_map.json gives."""
    extra = settings.get("extra_special_tokens") or []
    values = [*(settings.get(name) for name in NAMED), *(extra if isinstance(extra, list) else [])]
    plain = [value["content"] if isinstance(value, dict) and "__type" not in value else value for value in values]
    return {value for value in plain if isinstance(value, str)}


def _added(folder: Path, special: set[str]) -> dict[int, AddedToken]:
    """added_tokens.json, which older folders have: texts with their ids."""
    found = {}
    for text, token_id in _read(folder, "added_tokens.json").items():
        if isinstance(token_id, bool) or not isinstance(token_id, int):
            raise ModelError(f"{folder / 'added_tokens.json'}: {quoted(text)} must have an id, not {quoted(token_id)}")
        found[token_id] = AddedToken(text, normalized=text not in special, special=text in special)
    return found


def _token(file: Path, name: str, value: Any) -> Token:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        return _added_token(value if "__type" in value else {**value, "special": True})
    raise ModelError(f"{file}: {name} must be a text, or an object with its content, not {quoted(value)}")


def _added_token(spec: Mapping[str, Any]) -> AddedToken:
    flags = {name: bool(spec[name]) for name in _FLAGS if name in spec}
    return AddedToken(str(spec["content"]), **flags)


def _text(token: Token) -> str:
    return token if isinstance(token, str) else token.content


def _without(settings: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}
