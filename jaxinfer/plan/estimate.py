"""MeshPlan: what a model takes of a mesh's devices, and the time of its steps at peak rates, from shapes alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxinfer.config import EngineConfig
from jaxinfer.engine.step.shapes import EngineShapes
from jaxinfer.errors import ParameterError
from jaxinfer.model_config.decoder_config import DecoderConfig
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.parallel.topology import Topology
from jaxinfer.plan.chip import Chip
from jaxinfer.plan.exchange import Exchange, exchange_seconds
from jaxinfer.plan.place import topology_of
from jaxinfer.plan.temporaries import estimated_temporaries
from jaxinfer.plan.work import DeviceModel, Part, Rows, Step, device_model, step_of
from jaxinfer.runner.memory import cpu_blocks, fit_blocks, sequence_blocks, state_bytes, useful_blocks, with_blocks
from jaxinfer.runner.platform import resolve_dtype, usable_of
from jaxinfer.runner.sizes import Device, fit_context, plan_shapes

_NOT_PLANNED = ("layers", "head_dim", "embed", "q_per_kv")
"""Logical axes whose exchanges are not reckoned here; no engine splits the first two."""


class Workload(NamedTuple):
    """Requests of so many tokens in and out. rate: that come in a second; None: whenever there is room."""

    tokens_in: int
    tokens_out: int
    rate: float | None = None


class Term(NamedTuple):
    """Of a step's time. bound: what it waits for: `memory`, `products`, `links`; `measured` where only its time is
    known. ops, bytes: of the device; of exchanges the bytes that it ends up with, all together."""

    name: str
    seconds: float
    bound: str
    ops: float
    bytes: float


class StepTime(NamedTuple):
    """terms: one after another."""

    terms: tuple[Term, ...]

    @property
    def seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def bound(self) -> str:
        """What most of it waits for."""
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
        """For KV blocks; below 0: what is missing."""
        return self.usable - self.weights - self.slots - self.temporaries


@dataclass(frozen=True)
class MeshPlan:
    """A model on a mesh. refused: why no engine would start on it. estimated_temporaries: of shapes alone, where
    `memory` may have what a compiler told."""

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

    @property
    def chips(self) -> int:
        """Of the slice, or of the GPUs that are needed: there may be more than have devices of the mesh."""
        return self.topology.chips

    def holds(self, tokens: int) -> int:
        """How many sequences of so many tokens have all their blocks at once, of all shards."""
        if not self.memory.blocks:
            return 0
        needed = zip(self.memory.blocks, self._blocks_of(tokens), strict=True)
        return self.mesh.data * min((count - 1) // each for count, each in needed)

    def lacks(self, tokens: int) -> int:
        """Bytes that a device lacks for one sequence of so many tokens, beside a scratch block a group."""
        size = self.shapes.block_size
        costs = [token * size for token in self.model.kv_bytes]
        needed = sum(cost * (1 + each) for cost, each in zip(costs, self._blocks_of(tokens), strict=True))
        return max(needed - self.memory.left, 0)

    def _blocks_of(self, tokens: int) -> list[int]:
        return sequence_blocks([group.window for group in self.shapes.groups], tokens, self.shapes.block_size)

    def step(self, *rows: Rows) -> Step:
        """Of one shard."""
        return step_of(self.model, rows, self.imbalance)

    def time(self, *rows: Rows) -> StepTime:
        """Of a step in which every shard has these rows."""
        step = self.step(*rows)
        return StepTime((*_merged(self._parts(step)), *self._exchanges(step.exchanges)))

    def decode(self, batch: int, length: int) -> StepTime:
        """A step of `batch` requests, of all shards, that have `length` tokens each."""
        return self.time(Rows(-(-batch // self.mesh.data), 1, length))

    def decode_exchanges(self, batch: int) -> tuple[Exchange, ...]:
        """Of such a step."""
        return self.step(Rows(-(-batch // self.mesh.data), 1, 1)).exchanges

    def prefill(self, tokens: int) -> float:
        """Seconds of the steps that compute a prompt alone."""
        seconds, before = 0.0, 0
        while before < tokens:
            count = min(tokens - before, self.shapes.max_num_batched_tokens)
            seconds += self.time(Rows(1, count, before, int(before + count == tokens))).seconds
            before += count
        return seconds

    def _parts(self, step: Step) -> list[Term]:
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

    def _measured(self, part: Part) -> float | None:
        """Seconds of its calls, where they were measured, and in the model's type."""
        tables = self.chip.measured
        known = f"products.{self.model.dtype.name}" in tables and all(call.table in tables for call in part.calls)
        if not part.calls or not known:
            return None
        return self.chip.sharing * sum(call.count * tables[call.table].at(*call.at) for call in part.calls)

    def _exchanges(self, exchanges: Sequence[Exchange]) -> list[Term]:
        seconds = sum(exchange_seconds(one, self.mesh, self.topology, self.chip) for one in exchanges)
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


class Service(NamedTuple):
    """Of a workload with `batch` requests under way, those that fit. ttft: of a request that waits for nobody. itl:
    between two tokens of a request, on average, with the prompts of others between them. tokens_per_second: of output,
    of the whole mesh."""

    batch: int
    ttft: float
    itl: float
    tokens_per_second: float


def service(plan: MeshPlan, workload: Workload, batch: int) -> Service:
    """In the steady state, as the engine packs steps: prompts fill the budget of tokens of a step, in which the others
    decode. batch: requests under way at most; as many are as have slots and blocks, and begin before the
    first of them ends."""
    batch = min(batch, plan.holds(workload.tokens_in + workload.tokens_out), plan.shapes.all_seqs)
    if not batch:
        return Service(0, 0.0, 0.0, 0.0)
    rows, budget = -(-batch // plan.mesh.data), plan.shapes.max_num_batched_tokens
    at_once = max(1, min(rows, budget // workload.tokens_in))
    own, decoded = -(-workload.tokens_in // budget), workload.tokens_out - 1
    # Where prompts take more steps than a request decodes, it ends before all the others have begun.
    rows = min(rows, at_once * (own + decoded) // own)
    batch = min(batch, rows * plan.mesh.data)
    others = own * (rows - at_once) / at_once  # steps with prompts while a request decodes
    middle = workload.tokens_in + workload.tokens_out // 2
    decode = plan.time(Rows(rows, 1, middle)).seconds
    mixed = _mixed_seconds(plan, workload.tokens_in, at_once, Rows(rows - at_once, 1, middle))
    decoding = others * mixed + (decoded - others) * decode
    rate = batch * workload.tokens_out / (own * mixed + decoding)
    return Service(batch, plan.prefill(workload.tokens_in), decoding / max(decoded, 1), rate)


def _mixed_seconds(plan: MeshPlan, tokens: int, prompts: int, decoding: Rows) -> float:
    """Of a step with so many prompts, or with a part of one that is longer than a step, at its middle."""
    chunk = min(tokens, plan.shapes.max_num_batched_tokens)
    return plan.time(Rows(prompts, chunk, (tokens - chunk) // 2), decoding).seconds


def plan_mesh(
    config: EngineConfig,
    decoder: DecoderConfig,
    mesh: MeshConfig,
    name: str,
    chip: Chip,
    *,
    imbalance: float = 1.0,
    temporaries: int | None = None,
) -> MeshPlan:
    """decoder: with its quantisation. temporaries: what a compiler says that they take; None: estimated. Raises
    ParameterError where the model cannot be split so, or the mesh not placed."""
    if mesh.axes.get("stage", 1) > 1:
        raise ParameterError("mesh", f"stage={mesh.axes['stage']}: 1 is allowed, pipelines are not planned yet")
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
    model = device_model(decoder, dtype, chip.platform, mesh)
    told = None if chip.platform == "cpu" else total  # the engine asks a CPU for no memory
    shapes = plan_shapes(config, decoder, Device(chip.platform, told), mesh.data)
    estimated = estimated_temporaries(model.config, mesh, shapes, chip.platform, model.dtype.itemsize, model.kv_bytes)
    taken = estimated if temporaries is None else temporaries
    memory, refused = _memory(config, model, shapes, total, chip.platform, taken), None
    if memory.blocks:
        try:
            shapes = fit_context(config, with_blocks(shapes, memory.blocks))
        except ParameterError as error:
            refused = str(error)
    return MeshPlan(mesh, name, chip, topology, shapes, model, memory, imbalance, refused, estimated)


def _memory(
    config: EngineConfig, model: DeviceModel, shapes: EngineShapes, total: int, platform: str, temporaries: int
) -> MemoryPlan:
    usable = usable_of(total, config.cache.gpu_memory_utilization, platform)
    columns = model.config.table_shape[0] // model.mesh.shards("vocab")
    slots = state_bytes(shapes, columns, platform)
    memory = MemoryPlan(total, usable, model.weight_bytes, slots, temporaries, sum(model.kv_bytes), ())
    costs = [token * shapes.block_size for token in model.kv_bytes]
    if platform == "cpu":
        blocks = cpu_blocks([cost * model.mesh.size for cost in costs])
        if sum(cost * count for cost, count in zip(costs, blocks, strict=True)) > memory.left:
            blocks = [0]
    else:
        blocks = fit_blocks(max(memory.left, 0), costs, useful_blocks(shapes))
    return memory._replace(blocks=tuple(blocks) if min(blocks) > 1 else ())
