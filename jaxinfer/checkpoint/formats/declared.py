"""Declared: which modules of a checkpoint are quantised already, and how each lies there. No jax."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxinfer.checkpoint.formats.format import TensorFormat
from jaxinfer.checkpoint.formats.modules import Modules
from jaxinfer.quantization.kv import ScaledKVCodes


@dataclass(frozen=True)
class Group:
    """Modules of one format. named: those that the file names or gives patterns of. all: every matrix of layers.

    format: None for modules that are as in a plain checkpoint. Of several groups that name a module the first counts.
    """

    format: TensorFormat | None
    named: Modules = field(default_factory=Modules)
    all: bool = False


@dataclass(frozen=True)
class Declared:
    """Quantised weights of a checkpoint, as its config.json declares them.

    method: `quant_method`. ignored: modules that are as in a plain checkpoint. head, routers: True if they are among
    every group's matrices. unused: endings of names of tensors that may exist and have no use here; zeros: endings of
    names of tensors that may exist if they hold zeros alone. bodies, heads: possible beginnings of module names, and
    possible names of the head; files use any of them. kv_codes: the type that the checkpoint's scales of keys and
    values are for.
    """

    method: str
    groups: tuple[Group, ...]
    ignored: Modules = field(default_factory=Modules)
    head: bool = False
    routers: bool = False
    unused: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()
    bodies: tuple[str, ...] = ("model.",)
    heads: tuple[str, ...] = ("lm_head",)
    kv_codes: ScaledKVCodes | None = "float8_e4m3fn"

    @property
    def forms(self) -> str:
        """Names of the formats, for people."""
        return ", ".join(dict.fromkeys(str(group.format) for group in self.groups if group.format is not None))

    def of_matrix(self, name: str) -> TensorFormat | None:
        """The format of a layer's matrix; name: without the body's. None: it is as in a plain checkpoint."""
        found = self._of_layers(name, covered=True)
        return None if _holds_all_experts(found) else found

    def of_router(self, name: str) -> TensorFormat | None:
        """The format of what is multiplied to choose experts."""
        found = self._of_layers(name, covered=self.routers)
        return None if _holds_all_experts(found) else found

    def of_experts(self, name: str) -> TensorFormat | None:
        """The format of a tensor that holds all experts of a layer."""
        found = self._of_layers(name, covered=True)
        return found if _holds_all_experts(found) else None

    def of_head(self) -> TensorFormat | None:
        """The format of a head that is not the embedding."""
        return self._of(list(self.heads), covered=self.head)

    def _of_layers(self, name: str, covered: bool) -> TensorFormat | None:
        return self._of([f"{body}{name}" for body in self.bodies], covered)

    @property
    def steps(self) -> int:
        """A bound of the steps that it takes to match a name with all patterns."""
        return sum(modules.steps for modules in (self.ignored, *(group.named for group in self.groups)))

    @cached_property
    def _known(self) -> dict[tuple[bool | str, ...], TensorFormat | None]:
        """Formats that were found, by names: loading asks for a module several times."""
        return {}

    def _of(self, names: list[str], covered: bool) -> TensorFormat | None:
        key = (covered, *names)
        if key not in self._known:
            self._known[key] = self._matched(names, covered)
        return self._known[key]

    def _matched(self, names: list[str], covered: bool) -> TensorFormat | None:
        if any(self.ignored.holds(name) for name in names):
            return None
        named = [group.format for group in self.groups if any(group.named.holds(name) for name in names)]
        every = [group.format for group in self.groups if group.all and covered]
        return next(iter([*named, *every]), None)

    def placed(self, found: Collection[str]) -> "Declared":
        """Return the declaration with the names that tensors have among all of a checkpoint."""

        def placed(group: Group) -> Group:
            return group if group.format is None else replace(group, format=group.format.placed(found))

        return replace(self, groups=tuple(map(placed, self.groups)))


def _holds_all_experts(form: TensorFormat | None) -> bool:
    return form is not None and form.holds_all_experts
