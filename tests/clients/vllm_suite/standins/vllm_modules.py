"""Modules that vLLM's tests import and that are not installed: `vllm` itself, torch, fastapi.

What the tests of the server need of them is here in small. Every other name can be imported and raises when it is used:
a test of vLLM's own classes fails with a clear reason.
"""

import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import served_model

VERSION = os.environ["JAXINFER_SUITE_SERVER_VERSION"]
ABSENT = ("vllm", "torch", "fastapi", "pybase64")
INT64 = SimpleNamespace(min=-(2**63), max=2**63 - 1)


class NotStoodIn(Exception):
    """A name that can be imported, and not be used. An exception, because tests name classes of exceptions."""

    def __init__(self, *_: Any, **__: Any):
        raise NotImplementedError(f"{type(self).__qualname__} is vLLM's own: there is no stand-in for it")


class ModelConfig:
    """As much of vLLM's as tells the size of the vocabulary."""

    def __init__(self, **_: Any):
        self.fields = json.loads((served_model.folder() / "config.json").read_text())

    def get_vocab_size(self) -> int:
        return self.fields["vocab_size"]


class NoHub:
    """In place of the hub's client: a download gives the folder of the model that is served."""

    def snapshot_download(self, **_: Any) -> str:
        return str(served_model.folder())


def get_tokenizer(tokenizer_name: str, **_: Any) -> Any:
    """transformers' tokenizer of the served model, whatever model was asked for."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_name)


def get_open_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def download_weights(*_: Any, **__: Any) -> str:
    return str(served_model.folder())


NAMES: dict[str, dict[str, Any]] = {
    "vllm.tokenizers": {"get_tokenizer": get_tokenizer},
    "vllm.config": {"ModelConfig": ModelConfig},
    "vllm.version": {"__version__": VERSION, "_prev_minor_version": lambda: "0.32"},
    "vllm.envs": {"VLLM_USE_RUST_FRONTEND": False},
    "vllm.utils.network_utils": {"get_open_port": get_open_port},
    "vllm.transformers_utils.repo_utils": {"hf_api": NoHub},
    "vllm.model_executor.model_loader.weight_utils": {"download_weights_from_hf": download_weights},
    "torch": {"long": "int64", "iinfo": lambda _: INT64},
}


class StandIns(MetaPathFinder, Loader):
    """Finds the modules below `ABSENT`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(NAMES.get(module.__name__, {}))
        module.__dict__["__getattr__"] = missing_names(module.__name__)


def missing_names(module: str) -> Callable[[str], Any]:
    def name(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if f"{module}.{attribute}" in NAMES:
            return __import__(f"{module}.{attribute}", fromlist=["_"])
        return type(attribute, (NotStoodIn,), {"__qualname__": f"{module}.{attribute}"})

    return name


def install() -> None:
    sys.meta_path.append(StandIns())
