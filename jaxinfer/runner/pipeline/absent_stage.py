"""AbsentStage: a stage whose devices are all of other hosts. This one has no programs for it."""

from typing import Any

import jax

from jaxinfer.engine.device.calls import Write
from jaxinfer.engine.device.runner import ExpertTokens
from jaxinfer.engine.step.packed import PackedBurst, PackedForward
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.models.loaded import LoadedModel
from jaxinfer.runner.expert_load import StepLoad
from jaxinfer.runner.pipeline.absent import absent
from jaxinfer.runner.pipeline.stage import Stage
from jaxinfer.runner.pipeline.stage_device import Handed
from jaxinfer.runner.pipeline.stage_forward import Passed, StageForwarded
from jaxinfer.runner.program_table import Name
from jaxinfer.runner.sample import SampledArrays
from jaxinfer.runner.speculate import Accepted


class AbsentStage(Handed):
    """A stage without a device in this process, used like `StageDevice` and `LastStage`: its results are arrays on
    other hosts, from which they are handed over."""

    kv: tuple[jax.Array, ...] = ()

    def __init__(self, model: LoadedModel, shapes: EngineShapes, stage: Stage, *_: Any):
        """Take the arguments of a `StageDevice`."""
        super().__init__(model, shapes, stage)
        self._known: dict[Name, Any] = {}

    def make_slots(self) -> None: ...

    def write(self, call: Write) -> None: ...

    def collect(self, load: StepLoad) -> None: ...

    def warm_up_moves(self) -> None: ...

    def reset(self) -> None: ...

    def drop(self) -> None: ...

    def wait(self) -> None: ...

    def expert_load(self) -> ExpertTokens | None:
        """Unknown here."""
        return None

    def forward(self, step: PackedForward, given: jax.Array | Passed) -> tuple[StageForwarded, StepLoad]:
        return self._forwarded((step.kind, step.bucket)), _NO_LOAD

    def draft(self, step: PackedBurst, given: jax.Array) -> jax.Array:
        return _absent(self._results(("draft", step.bucket)).drafted)

    def verify(self, step: PackedBurst, given: jax.Array | Passed) -> tuple[StageForwarded, StepLoad]:
        return self._forwarded(("verify", step.bucket)), _NO_LOAD

    def accept(self, step: PackedBurst, *_: Any) -> tuple[Accepted, jax.Array]:
        out, back = self._results(("accept", step.bucket))
        given = (_absent(array) for array in (out.tokens, out.counts, out.logprobs))
        return Accepted(out.state, *given), _absent(back)

    def sample(self, size: int, forwarded: StageForwarded) -> tuple[SampledArrays, jax.Array]:
        _, sampled, back = self._results(("sample", size))
        return jax.tree.map(_absent, sampled), _absent(back)

    def _forwarded(self, name: Name) -> StageForwarded:
        """Return the results of a forward pass that other stages read, as absent arrays."""
        out: StageForwarded = self._results(name)
        hidden, scored, rows = jax.tree.map(_absent, (out.hidden, out.scored, out.rows))
        return StageForwarded((), (), None, hidden, scored, None, rows)

    def _results(self, name: Name) -> Any:
        """Shapes and places of what a program gives."""
        if name not in self._known:
            self._known[name] = self._traced(name)
        return self._known[name]

    def _traced(self, name: Name) -> Any:
        program = self.table[name]
        shapes, places = jax.eval_shape(program.function, *program.arguments), program.out_shardings
        # A place stands for all that a part of the results has.
        return jax.tree.map(_placed, places, shapes, is_leaf=lambda x: isinstance(x, jax.sharding.Sharding))


_NO_LOAD = StepLoad(None, 0)


def _placed(place: Any, shapes: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)


def _absent(array: Any) -> jax.Array:
    return absent(array.shape, array.dtype, array.sharding)
