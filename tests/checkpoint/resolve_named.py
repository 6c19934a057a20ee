"""Look a model up and print the hub's time limit: `python -m tests.checkpoint.resolve_named NAME`."""

import contextlib
import sys

from jaxinfer.checkpoint.source import resolve
from jaxinfer.errors import ModelError


def main(name: str) -> None:
    with contextlib.suppress(ModelError):
        resolve(name)
    from huggingface_hub import constants

    print(constants.HF_HUB_ETAG_TIMEOUT)


if __name__ == "__main__":
    main(sys.argv[1])
