#!/usr/bin/env python3
"""Makes the stubs of `jaxinfer/rpc/*.proto`, which are committed.

Needs grpcio-tools 1.71.2, whose stubs work with every later grpcio and protobuf; those of newer ones ask for the
newest. Put it into an environment of its own:

    python -m venv /tmp/stubs && /tmp/stubs/bin/pip install grpcio-tools==1.71.2 setuptools
    /tmp/stubs/bin/python scripts/make_stubs.py
"""

import sys
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

WANTED = "1.71.2"
ROOT = Path(__file__).parents[1]


def main() -> int:
    from grpc_tools import protoc  # pyright: ignore[reportMissingImports]

    if version("grpcio-tools") != WANTED:
        print(f"grpcio-tools must be {WANTED}, not {version('grpcio-tools')}", file=sys.stderr)
        return 2
    protos = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "jaxinfer" / "rpc").glob("*.proto"))
    include = str(files("grpc_tools") / "_proto")
    outputs = [f"--{kind}_out={ROOT}" for kind in ("python", "pyi", "grpc_python")]
    return protoc.main(["protoc", f"--proto_path={ROOT}", f"--proto_path={include}", *outputs, *protos])


if __name__ == "__main__":
    sys.exit(main())
