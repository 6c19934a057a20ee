"""MlpKind and ExpertsKind: the MLP of one layer, plain or gated, or experts of which a router chooses."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxinfer.errors import ModelError, ParameterError, quoted
from jaxinfer.model_config.formulas import check_formula
from jaxinfer.model_config.formulas.activations import ACTIVATIONS
from jaxinfer.model_config.formulas.router_scorings import ROUTER_SCORINGS


class Clamp(NamedTuple):
    """gpt-oss' gate: min(gate, limit) * sigmoid(alpha * gate) * (clip(up, -limit, limit) + 1)."""

    alpha: float
    limit: float


@dataclass(frozen=True)
class RouterKind:
    """Router that chooses a token's experts and weighs them.

    scoring: one of ROUTER_SCORINGS. choice_bias: added to the scores to choose experts, not to weigh them
    (DeepSeek-V3). groups: number of groups of experts, of which the best `top_groups` are considered, by the sum of
    their two best scores. normalise: weights are divided by their sum. scale: factor of weights. bias: the router's own
    product has a bias.
    """

    scoring: str = "softmax"
    choice_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    normalise: bool = False
    scale: float = 1.0
    bias: bool = False

    def __post_init__(self) -> None:
        check_formula(ROUTER_SCORINGS, self.scoring)


@dataclass(frozen=True)
class ExpertsKind:
    """Experts of one layer, each a gated MLP with `size` channels; every token goes to `chosen` of `count`.

    shared: channels of an MLP that every token goes through beside them, 0 for none. shared_gate: its result is
    multiplied by the sigmoid of a product of its own. activation, bias, clamp: of each expert, as of MlpKind; the
    shared MLP has that activation. redundant: copies of experts beside them, over a mesh's devices; copies: how many
    places one may have then.
    """

    count: int
    chosen: int
    size: int
    router: RouterKind = RouterKind()
    shared: int = 0
    shared_gate: bool = False
    activation: str = "silu"
    bias: bool = False
    clamp: Clamp | None = None
    redundant: int = 0
    copies: int = 1

    def __post_init__(self) -> None:
        check_formula(ACTIVATIONS, self.activation)
        if not 1 <= self.chosen <= self.count:
            raise ModelError(f"config.json: of {self.count} experts {self.chosen} cannot be chosen for a token")
        if self.size < 1 or self.shared < 0:
            raise ModelError(f"config.json: experts must have at least 1 channel, not {quoted(self.size)}")
        groups, top = self.router.groups, self.router.top_groups
        if groups < 1 or self.count % groups or not 1 <= top <= groups:
            raise ModelError(f"config.json: of {self.count} experts in {groups} groups {top} groups cannot be chosen")
        if self.chosen > top * (self.count // groups):
            raise ModelError(f"config.json: {top} of {groups} groups of experts do not hold {self.chosen}")

    @property
    def slots(self) -> int:
        """Places of experts and copies."""
        return self.count + self.redundant

    def with_redundant(self, redundant: int, devices: int) -> "ExpertsKind":
        """Return the experts with `redundant` copies over `devices` devices, none of which needs an expert twice.
        Raises ParameterError."""
        if (self.count + redundant) % devices:
            lower, field = redundant - (self.count + redundant) % devices, "redundant_experts"
            near = " or ".join(str(n) for n in (lower, lower + devices) if n >= 0)
            message = f"{self.count} experts and {redundant} copies cannot be split over {devices} devices; {near} can"
            raise ParameterError(field, message)
        if redundant > self.count:
            raise ParameterError("redundant_experts", f"{redundant} must not be more than the {self.count} experts")
        return replace(self, redundant=redundant, copies=min(redundant + 1, devices))

    def depths(self, hidden: int) -> dict[str, int]:
        """The inputs of each matrix that may be quantised, by the names of LayerSchemes; routers are not."""
        shared = {"shared_gate_up": hidden, "shared_down": self.shared} if self.shared else {}
        return {"experts_gate_up": hidden, "experts_down": self.size} | shared


@dataclass(frozen=True)
class MlpKind:
    """The MLP of one layer.

    size: channels between its two products. activation: one of ACTIVATIONS. gated: down(act(gate(x)) * up(x)), else
    down(act(up(x))). bias: all of its products have one. clamp: instead of `activation`.
    """

    size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    clamp: Clamp | None = None

    def __post_init__(self) -> None:
        check_formula(ACTIVATIONS, self.activation)
        if self.size < 1:
            raise ModelError(f"config.json: intermediate_size must be at least 1, not {quoted(self.size)}")

    def depths(self, hidden: int) -> dict[str, int]:
        """The inputs of each matrix, as of `ExpertsKind`."""
        return {"gate_up" if self.gated else "up": hidden, "down": self.size}
