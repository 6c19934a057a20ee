"""Writes the API reference, from docstrings, as HTML: `.venv/bin/python scripts/make_api_reference.py [--out DIR]`.

One page a public module. Fails where a public name has no docstring.
"""

import argparse
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pdoc
import pdoc.render

MODULES = (
    "jaxinfer.llm",
    "jaxinfer.sampling",
    "jaxinfer.config",
    "jaxinfer.errors",
    "jaxinfer.build",
    "jaxinfer.engine.core",
    "jaxinfer.engine.client.base",
    "jaxinfer.engine.types",
    "jaxinfer.engine.device.runner",
    "jaxinfer.rpc.client",
    "jaxinfer.server.app",
    "jaxinfer.serving.config",
    "jaxinfer.text",
    "jaxinfer.model_config.decoder_config",
    "jaxinfer.model_config.registry",
    "jaxinfer.checkpoint.safetensors",
    "jaxinfer_kernels",
)
"""Modules that users may import."""


def main() -> int:
    """Writes the pages. The exit status is 1 where a docstring is missing."""
    options = _options()
    missing = [name for module in MODULES for name in undocumented(importlib.import_module(module))]
    if missing:
        print("no docstring: " + ", ".join(missing), file=sys.stderr)
        return 1
    pdoc.render.configure(docformat="markdown", footer_text="jaxinfer", show_source=False)
    pdoc.pdoc(*MODULES, output_directory=options.out)
    pages = list(options.out.rglob("*.html"))
    print(f"{options.out / 'index.html'}: {len(pages)} pages")
    return 0


def undocumented(module: ModuleType) -> list[str]:
    """Public names of a module, with their public methods, that have no docstring of their own."""
    names = [] if inspect.getdoc(module) else [module.__name__]
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value) or inspect.isclass(value):
            names += [f"{module.__name__}.{name}"] if not value.__doc__ else []
        if inspect.isclass(value):
            names += [f"{module.__name__}.{name}.{method}" for method in _undocumented_methods(value)]
    return names


def _undocumented_methods(kind: type) -> list[str]:
    members = {name: getattr(member, "fget", member) for name, member in vars(kind).items() if not name.startswith("_")}
    return [name for name, member in members.items() if inspect.isfunction(member) and not inspect.getdoc(member)]


def _options() -> argparse.Namespace:
    default = Path(__file__).resolve().parent.parent / "build" / "api"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=default, help="folder to write (default: build/api)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
