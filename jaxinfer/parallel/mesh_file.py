"""A MeshConfig from a YAML file, which a person edits, or from one of those that are shipped; and such a file."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from jaxinfer.errors import JaxinferError, ParameterError, quoted, shortened
from jaxinfer.folder_files import read_text
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.rules import AXES, DEFAULT_RULES, ShardingRules, Split
from jaxinfer.parallel.topology import Topology

KEYS = ("axes", "rules", "topology")
LOGICAL_AXES = tuple(field.name for field in fields(ShardingRules))
MAX_BYTES = 64 * 2**10

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "meshes", _PACKAGE.parent / "configs" / "meshes")
"""Folders of an installed package (pyproject.toml puts them there), and of a checkout."""


def shipped_meshes() -> dict[str, Path]:
    """The files that are part of the package, by name."""
    found = [file for folder in _FOLDERS for file in folder.glob("*.yaml")]
    return {file.stem: file for file in sorted(found)}


def read_mesh(name_or_path: str) -> MeshConfig:
    """A mesh by the name of a shipped file, or from a file: what ends in .yaml or .yml, or has a slash.

    Raises ParameterError `mesh` with the file, the key in it that is wrong, and what is allowed.
    """
    path = _find(name_or_path)
    try:
        text = read_text(path.expanduser().resolve(), most=MAX_BYTES)
    except (JaxinferError, OSError, RuntimeError, ValueError) as error:
        raise ParameterError("mesh", f"cannot read {quoted(name_or_path)}: {error}") from None
    try:
        return _parse(_load(text))
    except ParameterError as error:
        key = "" if error.param == "mesh" else f"{error.param}: "
        raise ParameterError("mesh", f"{key}{error.message} (in {path})") from None


def mesh_text(mesh: MeshConfig) -> str:
    """A file of which `read_mesh` makes the same mesh: axes of one device are not in it, nor rules that say what holds
    without them. Copies of experts are no part of a file."""
    axes = {name: size for name, size in mesh.axes.items() if size > 1}
    rules = {
        axis: list(split)
        for axis in LOGICAL_AXES
        if (split := _live(mesh.rules, axis, axes)) != _live(DEFAULT_RULES, axis, axes)
    }
    values = {"topology": None if mesh.topology is None else str(mesh.topology), "axes": axes, "rules": rules}
    return yaml.safe_dump({key: value for key, value in values.items() if value}, sort_keys=False)


def _live(rules: ShardingRules, axis: str, axes: Mapping[str, int]) -> Split:
    return tuple(name for name in rules.split(axis) or () if name in axes)


def _find(name_or_path: str) -> Path:
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        return Path(name_or_path)
    shipped = shipped_meshes()
    if name_or_path not in shipped:
        allowed = f"a file that ends in .yaml, or one of {', '.join(shipped)}"
        raise ParameterError("mesh", f"{quoted(name_or_path)} is no mesh; give {allowed}")
    return shipped[name_or_path]


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, of which YAML would take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ParameterError("mesh", f"the key {quoted(key)} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _load(text: str) -> Mapping[Any, Any]:
    try:
        value = yaml.load(text, _Loader)
    except ParameterError:
        raise
    except Exception as error:  # a wrong number, date, tag or depth raises whatever Python does
        told = " ".join(str(error).split()) or type(error).__name__
        raise ParameterError("mesh", f"is not valid YAML: {shortened(told)}") from None
    return _mapping("mesh", value, "must hold a mapping")


def _parse(values: Mapping[Any, Any]) -> MeshConfig:
    for key in values:
        if key not in KEYS:
            raise ParameterError("mesh", f"{quoted(key)} is no key; there are {', '.join(KEYS)}")
    axes = _mapping("axes", values.get("axes"), "must be a mapping of axes to sizes")
    rules = _mapping("rules", values.get("rules"), "must be a mapping of logical axes to mesh axes")
    topology = values.get("topology")
    placed = None if topology is None else Topology.parse(topology)
    config = MeshConfig(axes, topology=placed)
    return MeshConfig(config.axes, ShardingRules(**{axis: _split(axis, rules[axis], axes) for axis in rules}), placed)


def _mapping(key: str, value: Any, wanted: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ParameterError(key, f"{wanted}, not {quoted(value)}")
    return value


def _split(axis: Any, value: Any, axes: Mapping[str, int]) -> Split:
    """Return the mesh axes that a rule gives one logical axis."""
    if axis not in LOGICAL_AXES:
        raise ParameterError("rules", f"{quoted(axis)} is no logical axis; there are {', '.join(LOGICAL_AXES)}")
    names = [] if value is None else value if isinstance(value, list) else [value]
    if any(name in names[:i] for i, name in enumerate(names[: len(AXES) + 1])):
        raise ParameterError(f"rules.{axis}", f"{quoted(value)} names an axis twice")
    for name in names:
        if name not in AXES:
            message = f"{quoted(name)} is no axis; a rule names one of {', '.join(AXES)}, a list of them, or null"
            raise ParameterError(f"rules.{axis}", message)
        if name not in axes:
            given = ", ".join(axes) or "none"
            raise ParameterError(f"rules.{axis}", f"{name} is not among the axes of this mesh, {given}")
    return tuple(names)
