"""Where the shared test material lies: real models, tokenizers and references that are not part of the project."""

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def material(*parts: str) -> Path:
    """The path of a file or folder under $JAXINFER_TEST_DATA, by default ../shared/data beside the repository.

    Skips the test, with the reason, where it is absent.
    """
    root = Path(os.environ.get("JAXINFER_TEST_DATA") or REPOSITORY.parent / "shared" / "data")
    path = root.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{path} is absent; JAXINFER_TEST_DATA names the folder of the shared material")
    return path
