"""EngineStats: a reading of the engine's statistics, a record for each of its parts. Plain data, no jax.

A field declares the series of /metrics that show it. gRPC has each field by its name after its record's `rpc_prefix`;
these names are unique.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar, get_origin

from jaxinfer.engine.constraint import ConstraintStats
from jaxinfer.engine.series import Series, counter, gauge, shown
from jaxinfer.engine.stats.hosts import HostReading

STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Edges of the histogram of tokens a step, vLLM's."""

# fmt: off
_WAITING = Series("gauge", "jaxinfer:num_requests_waiting_by_reason", "Waiting requests by what they wait for: a slot, "
                  "blocks, a long prompt under way (--max-num-partial-prefills), a step with room.", ("reason",))
_SECONDS = Series("counter", "jaxinfer:engine_seconds", "How the engine's thread spends its time: planning, starting a "
                  "step, filling masks of its rows, waiting for one to end and be read, handing results out, other "
                  "work, and idle without requests.", ("part",))
_STEPS = Series("counter", "jaxinfer:steps_by_kind", "Steps with rows: of decoding rows alone, with tokens of prompts, "
                "and several decode steps, or drafts, in one dispatch.", ("kind",))
_TOKENS = Series("counter", "jaxinfer:computed_tokens", "Tokens that steps computed: from the host (prompts, and what "
                 "is computed again), one after another, and for nobody, since programs have few sizes.", ("kind",))
_MEMORY = Series("gauge", "jaxinfer:device_memory_bytes", "Memory of each device: in use, in use at most, and what may "
                 "be; 0: not told.", ("kind", "device"))


@dataclass(frozen=True)
class SchedulerStats:
    """Requests with a slot, and those that wait for one, by reason (stats.py)."""

    running: int = gauge("vllm:num_requests_running", "Requests that hold a slot.")
    waiting: int = gauge("vllm:num_requests_waiting", "Requests that wait for a slot.")
    waiting_for_slots: int = shown(_WAITING.at("slots"))
    waiting_for_blocks: int = shown(_WAITING.at("pages"))
    waiting_for_prefills: int = shown(_WAITING.at("prefills"))
    waiting_for_step: int = shown(_WAITING.at("step"))
    expected_wait: float = gauge("jaxinfer:expected_queue_seconds", "Seconds until a request gets a slot that comes "
                                 "after all that wait, by how often slots came lately.")
    preemptions: int = counter("vllm:num_preemptions", "Requests whose blocks were taken away to be computed again.")


@dataclass(frozen=True)
class AdmissionStats:
    """Prompt tokens of requests that have got a slot."""

    prefix_queries: int = counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
    prefix_hits: int = shown(
        Series("counter", "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache."),
        Series("counter", "vllm:prompt_tokens_cached", "Prompt tokens whose KV was not computed but found."))
    admitted_tokens: int = 0


@dataclass(frozen=True)
class KVStats:
    """KV blocks of all groups and shards."""

    blocks_used: int = 0
    blocks_total: int = 0
    rpc_prefix: ClassVar = "kv_"


@dataclass(frozen=True)
class CoreStats:
    """Totals that the engine's loop counts."""

    steps: int = counter("jaxinfer:steps", "Steps that the engine ran.")
    prompt_tokens: int = counter("vllm:prompt_tokens", "Prompt tokens of requests that were started.")
    generation_tokens: int = counter("vllm:generation_tokens", "Tokens that were generated.")
    step_faults: int = counter("jaxinfer:step_faults", "Steps that failed; their requests were tried again, or ended "
                               "with an error.")
    abandoned_requests: int = counter("jaxinfer:requests_abandoned", "Requests ended because the API process that they "
                                      "came by had gone, which cannot count them.")
    constraint_failures: int = counter("jaxinfer:constraint_failures", "Sequences that a grammar, allowed_token_ids or "
                                       "bad_words ended with an error in the midst of their text.")
    forced_tokens: int = counter("jaxinfer:forced_tokens", "Tokens that a grammar left no choice of, and that were not "
                                 "drawn.")
    mask_wait_seconds: float = counter("jaxinfer:mask_wait_seconds", "Time that the engine's thread spent on reading "
                                       "steps, and drafts, that masks follow from, before it could fill those; a part "
                                       "of the parts `wait` and `apply` of jaxinfer:engine_seconds.")


@dataclass(frozen=True)
class TimeStats:
    """Time of the engine's thread; first the parts of it, in the order of `step_timer.py`."""

    schedule_seconds: float = shown(_SECONDS.at("schedule"))
    dispatch_seconds: float = shown(_SECONDS.at("dispatch"))
    constrain_seconds: float = shown(_SECONDS.at("constrain"))
    wait_seconds: float = shown(_SECONDS.at("wait"))
    apply_seconds: float = shown(_SECONDS.at("apply"))
    other_seconds: float = shown(_SECONDS.at("other"))
    idle_seconds: float = shown(_SECONDS.at("idle"))
    in_flight_seconds: float = counter("jaxinfer:step_in_flight_seconds", "Time with at least one step dispatched and "
                                       "not read.")
    starved_seconds: float = counter("jaxinfer:device_idle_seconds", "Time with no step in flight though there was "
                                     "work, as the host sees it. A lower bound: a step that has ended and was not "
                                     "read yet counts as in flight. Where the part `wait` of jaxinfer:engine_seconds "
                                     "is near 0, the host is what is slow.")


@dataclass(frozen=True)
class StepStats:
    """Steps by kind and size, and what they computed (step_cost.py).

    iteration_tokens: prompt tokens computed and tokens generated, in all steps. step_tokens: steps by their number of
    these, up to each edge of STEP_TOKENS, and above. flops, bytes: in time they outgrow 64 bits.
    """

    decode_steps: int = shown(_STEPS.at("decode"))
    mixed_steps: int = shown(_STEPS.at("mixed"))
    multi_step_steps: int = shown(_STEPS.at("multi_step"))
    speculate_steps: int = shown(_STEPS.at("speculate"))
    prefill_tokens: int = shown(_TOKENS.at("prefill"))
    decode_tokens: int = shown(_TOKENS.at("decode"))
    padded_tokens: int = shown(_TOKENS.at("padding"))
    flops: float = counter("jaxinfer:model_flops", "Floating-point operations that the steps needed, padding not "
                           "counted, all devices together: by a model of the step, not measured. 0 where the model's "
                           "sizes are not known.")
    bytes: float = counter("jaxinfer:model_bytes", "Bytes of device memory that the steps had to read and write for "
                           "weights and KV, all devices together: by a model of the step, not measured. 0 where the "
                           "model's sizes are not known.")
    iteration_tokens: int = 0
    step_tokens: tuple[int, ...] = (0,) * (len(STEP_TOKENS) + 1)


@dataclass(frozen=True)
class DraftStats:
    """Drafts (drafts.py)."""

    drafts: int = counter("vllm:spec_decode_num_drafts", "Rows whose next tokens were drafted, a step each.")
    draft_tokens: int = counter("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.")
    accepted_tokens: int = counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were what their "
                                   "positions drew.")
    accepted_at: tuple[int, ...] = counter("vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted drafts by their "
                                           "place among a row's drafts.", "position", default=())


@dataclass(frozen=True)
class ExpertStats:
    """Tokens of experts. A series for each expert of each layer would be thousands: Qwen3-30B-A3B has 48 x 128."""

    tokens: tuple[int, ...] = counter("jaxinfer:expert_tokens", "Tokens that each expert has got, all layers together, "
                                      "padding not counted.", "expert", default=())
    imbalance: tuple[float, ...] = gauge("jaxinfer:expert_imbalance", "Tokens of the expert with most of them over "
                                         "those of the mean expert since start, for each layer with experts, the "
                                         "first of which is 0.", "layer", default=())
    device_imbalance: tuple[float, ...] = gauge("jaxinfer:expert_device_imbalance", "Tokens of the device with most of "
                                                "them over those of the mean device since experts were last placed, "
                                                "for each layer with experts.", "layer", default=())
    placements: int = counter("jaxinfer:expert_placements", "How often experts were placed anew by their load.")
    rpc_prefix: ClassVar = "expert_"


@dataclass(frozen=True)
class DeviceStats:
    """The runner's programs, and bytes of each device."""

    compiles_after_ready: int = counter("jaxinfer:compiles_after_ready", "Programs that a step waited for to be "
                                        "compiled; anything but 0 is a defect.")
    memory_used: tuple[int, ...] = shown(_MEMORY.at("used"), default=())
    memory_peak: tuple[int, ...] = shown(_MEMORY.at("peak"), default=())
    memory_limit: tuple[int, ...] = shown(_MEMORY.at("limit"), default=())
# fmt: on


@dataclass(frozen=True)
class EngineStats:
    """A reading of gauges, and of totals since the start. hosts: of several; empty for one host."""

    scheduler: SchedulerStats = SchedulerStats()
    admission: AdmissionStats = AdmissionStats()
    kv: KVStats = KVStats()
    core: CoreStats = CoreStats()
    constraints: ConstraintStats = field(default_factory=ConstraintStats)
    time: TimeStats = TimeStats()
    steps: StepStats = StepStats()
    drafts: DraftStats = DraftStats()
    experts: ExpertStats = ExpertStats()
    device: DeviceStats = DeviceStats()
    hosts: tuple[HostReading, ...] = ()


class Statistic(NamedTuple):
    """A field of a reading. value: a tuple has a number for each host, device, expert, …"""

    name: str
    value: float | tuple[float, ...]
    series: tuple[Series, ...]


def statistics_of(stats: EngineStats) -> Iterator[Statistic]:
    """Return all fields of all records."""
    for part in fields(stats):
        held = getattr(stats, part.name)
        records = held if isinstance(held, tuple) else (held,)
        for each in fields(records[0]) if records else ():
            values = tuple(getattr(record, each.name) for record in records)
            name = getattr(records[0], "rpc_prefix", "") + each.name
            yield Statistic(name, values if records is held else values[0], each.metadata.get("series", ()))


_Record = TypeVar("_Record")


def totals(record: type[Any]) -> Any:
    """Return an object with the record's fields at their defaults, in which a part of the engine counts."""
    return SimpleNamespace(**{each.name: each.default for each in fields(record)})


def read_record(record: type[_Record], part: object, **others: Any) -> _Record:
    """Return a record of a part's attributes of the same names, in the fields' types; others: not from there."""
    own = {name: kind for name, kind in _types(record).items() if name not in others}
    return record(**{name: kind(getattr(part, name)) for name, kind in own.items()}, **others)


@cache
def _types(record: Any) -> dict[str, Any]:
    return {each.name: get_origin(each.type) or each.type for each in fields(record)}
