"""MeshPlan: what a model takes of a mesh's devices, and the time of its steps at peak rates, from shapes alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from jaxinfer.build.sized import Sized, size
from jaxinfer.config import EngineConfig
from jaxinfer.engine.scheduler.stage_rows import prompt_share
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import Chip
from jaxinfer.plan.drafting import Assumed, DraftPlan, draft_plan
from jaxinfer.plan.exchange import Exchange, exchange_seconds
from jaxinfer.plan.hand_over import HandOver, hand_over
from jaxinfer.plan.pipeline import StagedStep, flow_seconds
from jaxinfer.plan.place import topology_of
from jaxinfer.plan.temporaries import estimated_temporaries
from jaxinfer.plan.work import DeviceModel, DeviceStep, ShardRows, StepPart, placed_model, step_of
from jaxinfer.runner.fit.cpu_memory import cpu_blocks
from jaxinfer.runner.fit.memory import (
    fit_blocks,
    handed_bytes,
    sequence_blocks,
    state_bytes,
    useful_blocks,
    with_blocks,
)
from jaxinfer.runner.fit.sizes import Device, fit_context
from jaxinfer.runner.platform.values import resolve_dtype, usable_of
from jaxinfer.runner.step.stage import Stage, by_group

_NOT_PLANNED = ("layers", "head_dim", "embed", "q_per_kv")
"""Logical axes whose exchanges are not reckoned here; no engine splits the first two."""
_NUMBER = 4
"""Bytes of a number of a slot's state."""


class Term(NamedTuple):
    """Share of a step's time. bound: its bottleneck, `memory`, `products` or `links`; `measured` if only its time is
    known. ops, bytes: of the device; for exchanges, the bytes that it ends up with, all together."""

    name: str
    seconds: float
    bound: str
    ops: float
    bytes: float

    def repeated(self, times: int) -> "Term":
        """So many of it, one after another."""
        return self._replace(seconds=times * self.seconds, ops=times * self.ops, bytes=times * self.bytes)


class StepTime(NamedTuple):
    """terms: one after another."""

    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def bound(self) -> str:
        """Bottleneck of the largest share of the time."""
        totals: dict[str, float] = {}
        for term in self.terms:
            totals[term.bound] = totals.get(term.bound, 0.0) + term.seconds
        return max(totals, key=lambda bound: totals[bound])


class MemoryPlan(NamedTuple):
    """Bytes of one device. blocks: of every KV group, of a shard; none where nothing is left for them.
    kv_token: of a token in all KV groups."""

    total: int
    usable: int
    weights: int
    slots: int
    temporaries: int
    kv_token: int
    blocks: tuple[int, ...]

    @property
    def left(self) -> int:
        """Bytes that remain for KV blocks; negative if some are missing."""
        return self.usable - self.weights - self.slots - self.temporaries


class StagePlan(NamedTuple):
    """A stage of a pipeline. span: its first layer, and the one after its last. memory: of one of its devices, with the
    blocks that every stage has of its groups."""

    stage: Stage
    span: tuple[int, int]
    model: DeviceModel
    memory: MemoryPlan

    @property
    def layers(self) -> str:
        """Layers in the format of `--pipeline-layers`."""
        return f"{self.span[0]}-{self.span[1] - 1}"


@dataclass(frozen=True)
class MeshPlan:
    """A model on a mesh. refused: why no engine would start on it. estimated_temporaries: of shapes alone, where
    `memory` may have what a compiler told. stages: of a pipeline, whose `model` and `memory` are those of the stage
    that has room for the fewest tokens, with the blocks of all groups; empty where a mesh has one stage. drafter: who
    drafts; None: nobody."""

    mesh: MeshConfig
    name: str
    chip: Chip
    topology: Topology
    shapes: EngineShapes
    model: DeviceModel
    memory: MemoryPlan
    imbalance: float = 1.0
    refused: str | None = None
    estimated_temporaries: int = 0
    stages: tuple[StagePlan, ...] = ()
    drafter: DraftPlan | None = None

    @property
    def chips(self) -> int:
        """Chips of the slice, or GPUs that are needed; there may be more than those with devices of the mesh."""
        return self.topology.chips

    def holds(self, tokens: int) -> int:
        """Count the sequences of `tokens` tokens that have all their blocks at once, in all shards together."""
        if not self.memory.blocks:
            return 0
        needed = zip(self.memory.blocks, self._blocks_of(tokens), strict=True)
        return self.mesh.data * min((count - 1) // each for count, each in needed)

    def lacks(self, tokens: int) -> int:
        """Bytes that a device lacks for one sequence of so many tokens, beside a scratch block a group."""
        each = [1 + count for count in self._blocks_of(tokens)]
        if not self.stages:
            return self._lacks(self.model, self.memory, each)
        return max(
            self._lacks(one.model, one.memory, [each[group] for group in one.stage.groups]) for one in self.stages
        )

    def _lacks(self, model: DeviceModel, memory: MemoryPlan, blocks: Sequence[int]) -> int:
        """blocks: needed of each of the model's groups."""
        costs = [token * self.shapes.block_size for token in _kv_bytes(model, self.drafter)]
        return max(sum(cost * count for cost, count in zip(costs, blocks, strict=True)) - memory.left, 0)

    def _blocks_of(self, tokens: int) -> list[int]:
        return sequence_blocks([group.window for group in self.shapes.groups], tokens, self.shapes.block_size)

    def step(self, *rows: ShardRows) -> DeviceStep:
        """Return the step of one shard, in the slowest stage."""
        return step_of(self._models[self._slowest(*rows)], rows, self.imbalance)

    def time(self, *rows: ShardRows) -> StepTime:
        """Estimate the time of a step in which every shard has these rows, in the slowest stage."""
        return max(self.stage_times(*rows), key=lambda time: time.seconds)

    def mixed_time(self, *rows: ShardRows) -> StepTime:
        """Estimate the time of a step with prompts, which the draft model reads too."""
        read = [each._replace(scored=0) for each in rows]
        return self._with_drafts(self.time(*rows), [(1, read)])

    def draft_time(self, rows: ShardRows) -> StepTime:
        """Estimate the time of a step in which these decoding rows draft: to make the drafts, and to check them in a
        pass over all their positions."""
        assert self.drafter is not None
        positions = 1 + self.drafter.speculation.tokens
        checked = self.time(rows._replace(tokens=positions, scored=positions))
        return self._with_drafts(checked, [(times, [each]) for times, each in self.drafter.passes(rows)])

    def should_draft(self, rows: ShardRows) -> bool:
        """Return whether drafts give these rows more tokens a second."""
        return self.drafter is not None and self._drafted_token_seconds(rows) < self.time(rows).seconds

    def token_seconds(self, rows: ShardRows) -> float:
        """Estimate the time until each of these decoding rows has a token more, on average, with drafts if they pay."""
        plain = self.time(rows).seconds
        return plain if self.drafter is None else min(plain, self._drafted_token_seconds(rows))

    def _drafted_token_seconds(self, rows: ShardRows) -> float:
        assert self.drafter is not None
        return self.draft_time(rows).seconds / self.drafter.tokens

    def _with_drafts(self, time: StepTime, passes: Sequence[tuple[int, Sequence[ShardRows]]]) -> StepTime:
        """Add the time of the draft model's passes over rows, each so many times."""
        if self.drafter is None or self.drafter.model is None:
            return time
        found = [(times, self._time(0, self.drafter.model, rows)) for times, rows in passes if times]
        together = StepTime(tuple(term.repeated(times) for times, each in found for term in each.terms))
        ops, size = sum(term.ops for term in together.terms), sum(term.bytes for term in together.terms)
        return StepTime((*time.terms, Term("drafts", together.seconds, together.bound, ops, size)))

    def stage_times(self, *rows: ShardRows) -> tuple[StepTime, ...]:
        """Estimate the time of a step in each stage."""
        return tuple(self._time(stage, model, rows) for stage, model in enumerate(self._models))

    def staged_step(self, *rows: ShardRows) -> StagedStep:
        """Return a step as it passes the stages of a pipeline."""
        tokens = sum(each.count * each.tokens for each in rows)
        seconds = tuple(time.seconds for time in self.stage_times(*rows))
        return StagedStep(seconds, tuple(one.seconds for one in self.hand_overs(tokens)))

    def hand_overs(self, tokens: float) -> tuple[HandOver, ...]:
        """Return the transfers of a step of so many tokens of a shard: from each stage of a pipeline to the next, and
        from the last to the first."""
        stages = range(len(self.stages))
        hidden = int(tokens * self.model.config.hidden_size * self.model.dtype.itemsize)
        newest = self.shapes.num_slots * _NUMBER
        over = partial(hand_over, mesh=self.mesh, topology=self.topology, chip=self.chip)
        return (*(over(hidden, stage, stage + 1) for stage in stages[:-1]), over(newest, stages[-1], 0))

    def decode(self, batch: int, length: int) -> StepTime:
        """A step of `batch` requests, of all shards, that have `length` tokens each, in the slowest stage. In a
        pipeline, as many steps as there are stages share the requests out."""
        return self.time(self.decode_rows(batch, length))

    def decode_rows(self, batch: int, length: int) -> ShardRows:
        """The rows of a shard in the largest of such steps."""
        return ShardRows(-(-batch // (self.mesh.data * self.mesh.stages)), 1, length)

    def decode_exchanges(self, batch: int) -> tuple[Exchange, ...]:
        """Return the exchanges of a decode step of `batch` requests."""
        return self.step(self.decode_rows(batch, 1)).exchanges

    def prefill(self, tokens: int) -> float:
        """Seconds of the steps that compute a prompt alone."""
        if not self.stages:
            return sum(self.mixed_time(rows).seconds for rows in self._chunks(tokens))
        return flow_seconds([self.staged_step(rows) for rows in self._chunks(tokens)])

    def _chunks(self, tokens: int) -> Iterator[ShardRows]:
        """Steps of a prompt alone. Those of a pipeline share it out, so that stages compute side by side."""
        before, most = 0, self.shapes.max_num_batched_tokens
        while before < tokens:
            left = tokens - before
            count = min(left, prompt_share(left, len(self.stages), most, decoding=False) if self.stages else most)
            yield ShardRows(1, count, before, int(before + count == tokens))
            before += count

    @property
    def _models(self) -> Sequence[DeviceModel]:
        return [one.model for one in self.stages] or [self.model]

    def _slowest(self, *rows: ShardRows) -> int:
        seconds = [time.seconds for time in self.stage_times(*rows)]
        return seconds.index(max(seconds))

    def _time(self, stage: int, model: DeviceModel, rows: Sequence[ShardRows]) -> StepTime:
        step = step_of(model, rows, self.imbalance)
        return StepTime((*_merged(self._parts(step)), *self._exchanges(step.exchanges, stage)))

    def _parts(self, step: DeviceStep) -> list[Term]:
        bandwidth = self.chip.memory.bytes_per_second / self.chip.devices
        found = []
        for part in step.parts:
            read, computed = part.bytes / bandwidth, part.ops / (self.chip.rate(part.kind) / self.chip.devices)
            bound = "products" if computed > read else "memory"
            seconds = self._measured(part)
            if seconds is None:
                seconds = max(read, computed)
            elif not part.bytes:
                bound = "measured"
            found.append(Term(part.name, seconds, bound, part.ops, part.bytes))
        return [term for term in found if term.seconds]

    def _measured(self, part: StepPart) -> float | None:
        """Seconds of its calls, where they were measured, and in the model's type."""
        tables = self.chip.measured
        known = f"products.{self.model.dtype.name}" in tables and all(call.table in tables for call in part.calls)
        if not part.calls or not known:
            return None
        return self.chip.sharing * sum(call.count * tables[call.table].at(*call.at) for call in part.calls)

    def _exchanges(self, exchanges: Sequence[Exchange], stage: int) -> list[Term]:
        seconds = sum(exchange_seconds(one, self.mesh, self.topology, self.chip, stage) for one in exchanges)
        size = sum(one.count * one.bytes for one in exchanges)
        return [Term("exchanges", seconds, "links", 0.0, size)] if seconds else []


def _merged(terms: Sequence[Term]) -> list[Term]:
    """One term a name, which waits for what the longest of them does."""
    found: dict[str, Term] = {}
    for term in terms:
        other = found.get(term.name, term._replace(seconds=0.0, ops=0.0, bytes=0))
        bound = max(other, term, key=lambda each: each.seconds).bound
        sums = (a + b for a, b in zip(term[3:], other[3:], strict=True))
        found[term.name] = Term(term.name, term.seconds + other.seconds, bound, *sums)
    return list(found.values())


def plan_mesh(
    config: EngineConfig,
    decoder: DecoderConfig,
    mesh: MeshConfig,
    name: str,
    chip: Chip,
    *,
    imbalance: float = 1.0,
    temporaries: int | None = None,
    assumed: Assumed | None = None,
) -> MeshPlan:
    """decoder: with its quantisation. temporaries: what a compiler says that they take; None: estimated. assumed: of
    what drafts, where `config` asks for drafts. Raises ParameterError where the model cannot be split so, or the mesh
    not placed."""
    for axis in _NOT_PLANNED:
        if mesh.shards(axis) > 1:
            raise ParameterError("mesh", f"rules.{axis}: its exchanges are not planned; null is allowed")
    topology = topology_of(mesh, chip)
    if chip.platform == "cpu":
        chip = chip.shared_by(mesh.size)
    total = chip.memory.bytes // chip.devices
    dtype = resolve_dtype(config.load.dtype, chip.platform, decoder.held_dtype)
    if dtype.itemsize > 2 and dtype.name not in chip.ops_per_second:
        raise ParameterError("dtype", f"{dtype}: chips' rates of such products are not known; bfloat16 is allowed")
    if chip.platform == "cpu" and dtype.name not in chip.ops_per_second:
        message = f"{dtype}: the calibration has rates of {', '.join(chip.ops_per_second)} alone"
        raise ParameterError("dtype", message)
    told = None if chip.platform == "cpu" else total  # the engine asks a CPU for no memory
    if assumed is not None and mesh.stages > 1:
        raise ParameterError("speculative_config", "drafts of a pipeline are not planned yet; leave it out")
    sized = size(config, decoder.over(*mesh.parts), mesh, Device(chip.platform, told), dtype)
    shapes, drafter = sized.shapes, None if assumed is None else draft_plan(assumed, sized)
    usable = usable_of(total, config.cache.gpu_memory_utilization, chip.platform)
    stages = _stages(sized, MemoryPlan(total, usable, 0, 0, 0, 0, ()), drafter)
    fullest = min(stages, key=lambda one: one.memory.left / one.memory.kv_token)
    estimated, refused = fullest.memory.temporaries, None
    if temporaries is not None:
        stages = [one._replace(memory=one.memory._replace(temporaries=temporaries)) for one in stages]
    blocks = _blocks(stages, shapes, chip, drafter)
    memory = stages[fullest.stage.number].memory._replace(blocks=blocks)
    if blocks:
        stages = [_with_blocks(one, blocks) for one in stages]
        try:
            shapes = fit_context(config, with_blocks(shapes, blocks))
        except ParameterError as error:
            refused = str(error)
    of_pipeline = tuple(stages) if len(stages) > 1 else ()
    placed = (mesh, name, chip, topology)
    return MeshPlan(*placed, shapes, fullest.model, memory, imbalance, refused, estimated, of_pipeline, drafter)


def _stages(sized: Sized, empty: MemoryPlan, drafter: DraftPlan | None) -> list[StagePlan]:
    """One where the mesh has one. empty: a device's memory with nothing in it."""
    models = [placed_model(part, sized.dtype, sized.platform, sized.mesh.of_stage) for part in sized.parts]
    return [
        StagePlan(stage, span, model, _memory(empty, model, stage.shapes(sized.shapes), sized.platform, drafter))
        for stage, span, model in zip(sized.stages, sized.spans, models, strict=True)
    ]


def _memory(
    empty: MemoryPlan, model: DeviceModel, shapes: EngineShapes, platform: str, drafter: DraftPlan | None
) -> MemoryPlan:
    """Without blocks. shapes: with the groups of the model, or of the stage."""
    config, mesh = model.config, model.mesh
    columns = config.table_shape[0] // mesh.shards("vocab") if config.ends else 0
    slots = state_bytes(shapes, columns, platform) + handed_bytes(config, shapes, model.dtype.itemsize)
    return empty._replace(
        weights=model.weight_bytes + (0 if drafter is None else drafter.weight_bytes),
        slots=slots + (0 if drafter is None else drafter.features),
        temporaries=estimated_temporaries(config, mesh, shapes, platform, model.dtype.itemsize, model.kv_bytes),
        kv_token=sum(_kv_bytes(model, drafter)),
    )


def _kv_bytes(model: DeviceModel, drafter: DraftPlan | None) -> tuple[int, ...]:
    """Return the bytes of a token in each of the model's KV groups, the draft model's included."""
    return model.kv_bytes if drafter is None else drafter.with_kv(model.kv_bytes)


def _blocks(
    stages: Sequence[StagePlan], shapes: EngineShapes, chip: Chip, drafter: DraftPlan | None
) -> tuple[int, ...]:
    """Return the blocks of each group, as many in every stage that has some of its layers; empty if a group would have
    no room."""
    costs = [[token * shapes.block_size for token in _kv_bytes(one.model, drafter)] for one in stages]
    if chip.platform == "cpu":
        blocks = _cpu_blocks(stages, costs, shapes, chip.memory.bytes)
    else:
        fitting = (
            fit_blocks(max(one.memory.left, 0), own, useful_blocks(one.stage.shapes(shapes)))
            for one, own in zip(stages, costs, strict=True)
        )
        blocks = [min(counts) for counts in by_group([one.stage for one in stages], list(fitting))]
    return tuple(blocks) if min(blocks) > 1 else ()


def _cpu_blocks(
    stages: Sequence[StagePlan], costs: Sequence[Sequence[int]], shapes: EngineShapes, total: int
) -> list[int]:
    """costs: bytes of a block of each of a stage's groups. total: bytes of the machine. None of a group where a device
    has no room for them."""
    of_stages = [[cost * one.model.mesh.size for cost in own] for one, own in zip(stages, costs, strict=True)]
    of_all = [sum(each) for each in by_group([one.stage for one in stages], of_stages)]
    weights = sum(one.memory.weights * one.model.mesh.size for one in stages)
    blocks = cpu_blocks(of_all, shapes, total, weights).blocks
    taken = [
        sum(cost * blocks[group] for group, cost in zip(one.stage.groups, own, strict=True))
        for one, own in zip(stages, costs, strict=True)
    ]
    fits = all(size <= one.memory.left for one, size in zip(stages, taken, strict=True))
    return blocks if fits else [0] * len(blocks)


def _with_blocks(one: StagePlan, blocks: Sequence[int]) -> StagePlan:
    return one._replace(memory=one.memory._replace(blocks=tuple(blocks[group] for group in one.stage.groups)))
