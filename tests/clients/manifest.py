"""What `clients.toml` says: the clients that are tried, and the environments that they run in."""

import tomllib
from pathlib import Path
from typing import Any, Literal, NamedTuple

HERE = Path(__file__).resolve().parent


class Environment(NamedTuple):
    """Packages that one or several clients run with.

    Attributes:
        requirements: the packages of these clients, each with its exact version.
        constraints: the versions of the packages that those depend on, or an empty text.
        installer: `any` is uv where it is installed and else pip.
    """

    name: str
    kind: Literal["python", "node"]
    requirements: tuple[str, ...]
    constraints: str = ""
    installer: Literal["any", "pip"] = "any"


class Client(NamedTuple):
    """A client, and the script that uses it."""

    name: str
    title: str
    requirements: tuple[str, ...]
    script: Path
    ci: bool
    environment: Environment


def read_manifest(path: Path = HERE / "clients.toml") -> list[Client]:
    """The clients of a manifest, in its order."""
    manifest = tomllib.loads(path.read_text())
    environments = {name: _environment(name, manifest, path.parent) for name in manifest["environment"]}
    return [
        Client(
            name, table["title"], tuple(table["requirements"]), path.parent / table["script"], table["ci"],
            environments[table["environment"]],
        )
        for name, table in manifest["client"].items()
    ]  # fmt: skip


def _environment(name: str, manifest: dict[str, Any], folder: Path) -> Environment:
    users = [client for client in manifest["client"].values() if client["environment"] == name]
    requirements = [requirement for client in users for requirement in client["requirements"]]
    constraints = folder / "constraints" / f"{name}.txt"
    return Environment(
        name=name,
        requirements=tuple(sorted(set(requirements))),
        constraints=constraints.read_text() if constraints.exists() else "",
        **manifest["environment"][name],
    )
