"""The engine's gauges and totals as Prometheus families, made from one reading of its statistics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from jaxinfer.engine.types import STEP_TOKENS, EngineStats, ModelInfo
from jaxinfer.metrics.requests import common_labels, cumulative

_GAUGES = (
    ("vllm:num_requests_running", "Requests that hold a slot.", "running"),
    ("vllm:num_requests_waiting", "Requests that wait for a slot.", "waiting"),
    (
        "jaxinfer:expected_queue_seconds",
        "Seconds until a request gets a slot that comes after all that wait, by how often slots came lately.",
        "expected_wait",
    ),
    ("jaxinfer:grammars_kept", "Compiled grammars that are kept.", "grammars_kept"),
    (
        "jaxinfer:grammars_kept_bytes",
        "Memory that they take, as it was measured when they were compiled.",
        "grammar_bytes",
    ),
)
_COUNTERS = (
    ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hits"),
    ("vllm:prompt_tokens_cached", "Prompt tokens whose KV was not computed but found.", "prefix_hits"),
    ("vllm:num_preemptions", "Requests whose blocks were taken away to be computed again.", "preemptions"),
    ("vllm:prompt_tokens", "Prompt tokens of requests that were started.", "prompt_tokens"),
    ("vllm:generation_tokens", "Tokens that were generated.", "generation_tokens"),
    ("jaxinfer:steps", "Steps that the engine ran.", "steps"),
    ("jaxinfer:compiles_after_ready", "Programs compiled after readiness; anything but 0 is a defect.",
     "compiles_after_ready"),
    ("jaxinfer:step_faults", "Steps that failed; their requests were tried again, or ended with an error.",
     "step_faults"),
    ("jaxinfer:requests_abandoned", "Requests ended because the API process that they came by had gone, which "
     "cannot count them.", "abandoned_requests"),
    ("jaxinfer:grammar_compile_seconds", "Time spent compiling grammars, refused ones included; beside the engine's "
     "thread.", "grammar_seconds"),
    ("jaxinfer:mask_wait_seconds", "Time that the engine's thread spent on reading steps, and drafts, that masks "
     "follow from, before it could fill those; a part of the parts `wait` and `apply` of jaxinfer:engine_seconds.",
     "mask_wait_seconds"),
    ("jaxinfer:constraint_failures", "Sequences that a grammar, allowed_token_ids or bad_words ended with an error in "
     "the midst of their text.", "constraint_failures"),
    ("jaxinfer:forced_tokens", "Tokens that a grammar left no choice of, and that were not drawn.", "forced_tokens"),
    ("vllm:spec_decode_num_drafts", "Rows whose next tokens were drafted, a step each.", "drafts"),
    ("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.", "draft_tokens"),
    ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were what their positions drew.", "accepted_tokens"),
    ("jaxinfer:expert_placements", "How often experts were placed anew by their load.", "expert_placements"),
    ("jaxinfer:step_in_flight_seconds", "Time with at least one step dispatched and not read.", "in_flight_seconds"),
    ("jaxinfer:device_idle_seconds",
     "Time with no step in flight though there was work, as the host sees it. A lower bound: a step that has ended and "
     "was not read yet counts as in flight. Where the part `wait` of jaxinfer:engine_seconds is near 0, the host is "
     "what is slow.", "starved_seconds"),
    ("jaxinfer:model_flops",
     "Floating-point operations that the steps needed, padding not counted, all devices together: by a model of the "
     "step, not measured. 0 where the model's sizes are not known.", "flops"),
    ("jaxinfer:model_bytes",
     "Bytes of device memory that the steps had to read and write for weights and KV, all devices together: by a model "
     "of the step, not measured. 0 where the model's sizes are not known.", "bytes"),
)  # fmt: skip
_LABELLED_COUNTERS = (
    ("jaxinfer:engine_seconds",
     "How the engine's thread spends its time: planning, starting a step, filling masks of its rows, waiting for one "
     "to end and be read, handing results out, other work, and idle without requests.", "part",
     {part: f"{part}_seconds" for part in ("schedule", "dispatch", "constrain", "wait", "apply", "other", "idle")}),
    ("jaxinfer:grammars", "Grammars that requests asked for: kept from an earlier request, compiled, or refused.",
     "result", {result: f"grammars_{result}" for result in ("cached", "compiled", "refused")}),
    ("jaxinfer:steps_by_kind", "Steps with rows: of decoding rows alone, with tokens of prompts, and several decode "
     "steps, or drafts, in one dispatch.", "kind",
     {kind: f"{kind}_steps" for kind in ("decode", "mixed", "multi_step", "speculate")}),
    ("jaxinfer:computed_tokens", "Tokens that steps computed: from the host (prompts, and what is computed again), one "
     "after another, and for nobody, since programs have few sizes.", "kind",
     {"prefill": "prefill_tokens", "decode": "decode_tokens", "padding": "padded_tokens"}),
)  # fmt: skip
_LABELLED_GAUGES = (
    ("jaxinfer:num_requests_waiting_by_reason",
     "Waiting requests by what they wait for: a slot, blocks, a long prompt under way (--max-num-partial-prefills), a "
     "step with room.", "reason",
     {"slots": "waiting_for_slots", "pages": "waiting_for_blocks", "prefills": "waiting_for_prefills",
      "step": "waiting_for_step"}),
)  # fmt: skip


_LISTED = (
    (CounterMetricFamily, "jaxinfer:expert_tokens", "Tokens that each expert has got, all layers together, padding not "
     "counted.", "expert", "expert_tokens"),
    (GaugeMetricFamily, "jaxinfer:expert_imbalance", "Tokens of the expert with most of them over those of the mean "
     "expert since start, for each layer with experts, the first of which is 0.", "layer", "expert_imbalance"),
    (GaugeMetricFamily, "jaxinfer:expert_device_imbalance", "Tokens of the device with most of them over those of the "
     "mean device since experts were last placed, for each layer with experts.", "layer", "expert_device_imbalance"),
    (CounterMetricFamily, "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted drafts by their place among a "
     "row's drafts.", "position", "accepted_at"),
    (GaugeMetricFamily, "jaxinfer:host_devices", "Devices of the engine that each host has.", "host", "host_devices"),
    (GaugeMetricFamily, "jaxinfer:host_calls_behind", "Calls of host 0 that each host has not performed yet.", "host",
     "host_calls_behind"),
    (GaugeMetricFamily, "jaxinfer:host_step_skew_seconds", "By how much each host collected the last step later than "
     "host 0.", "host", "host_step_skew"),
    (GaugeMetricFamily, "jaxinfer:host_heartbeat_age_seconds", "Since each host was heard.", "host",
     "host_heartbeat_age"),
)  # fmt: skip
# A series for each expert of each layer would be thousands of them: Qwen3-30B-A3B has 48 x 128.


class EngineFamilies:
    """One reading of an engine's statistics, labelled as `common_labels` says."""

    def __init__(self, stats: EngineStats, info: ModelInfo, model_name: str):
        self._stats = stats
        self._info = info
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """The families, in the order of the tables above."""
        stats = self._stats
        for name, text, field in _GAUGES:
            yield self._gauge(name, text, {}, getattr(stats, field))
        capacity = stats.waiting_for_slots + stats.waiting_for_blocks + stats.waiting_for_step
        yield self._labelled(
            GaugeMetricFamily,
            "vllm:num_requests_waiting_by_reason",
            "Waiting requests: for room, or set aside for a while.",
            "reason",
            {"capacity": capacity, "deferred": stats.waiting_for_prefills},
        )
        used, total = stats.kv_blocks_used, stats.kv_blocks_total
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", {}, used / max(total, 1))
        for name, text, field in _COUNTERS:
            yield self._labelled(CounterMetricFamily, name, text, None, {"": getattr(stats, field)})
        yield self._labelled(
            CounterMetricFamily,
            "vllm:prompt_tokens_by_source",
            "Prompt tokens of requests that got a slot: computed, or found in the prefix cache.",
            "source",
            {"local_compute": stats.admitted_tokens - stats.prefix_hits, "local_cache_hit": stats.prefix_hits},
        )
        for kind, table in ((CounterMetricFamily, _LABELLED_COUNTERS), (GaugeMetricFamily, _LABELLED_GAUGES)):
            for name, text, label, fields in table:
                values = {value: getattr(stats, field) for value, field in fields.items()}
                yield self._labelled(kind, name, text, label, values)
        for kind, name, text, label, field in _LISTED:
            if values := getattr(stats, field):
                yield self._labelled(kind, name, text, label, {str(i): value for i, value in enumerate(values)})
        yield self._device_memory()
        yield self._step_tokens()
        yield self._gauge("vllm:cache_config_info", "KV cache in labels; 1.", self._cache_labels(), 1)
        backend = {"backend": self._info.attention_backend}
        yield self._gauge("jaxinfer:attention_backend_info", "Paged attention's backend; 1.", backend, 1)
        held = {"weights": self._info.weights, "dtype": self._info.dtype}
        yield self._gauge("jaxinfer:weights_info", "How weights are held, and activations' type; 1.", held, 1)

    def _cache_labels(self) -> dict[str, str]:
        info = self._info
        tokens = (info.num_blocks - info.shards) * info.block_size  # one block of each shard is scratch
        requests = tokens / info.max_model_len
        if info.shards > 1:  # none has blocks of several
            requests = tokens // info.shards // info.max_model_len * info.shards
        return {
            "block_size": str(info.block_size),
            "cache_dtype": info.kv_cache_dtype,
            "num_gpu_blocks": str(info.num_blocks),
            "kv_cache_size_tokens": str(tokens),
            "kv_cache_max_concurrency": f"{requests:.2f}",
        }

    def _device_memory(self) -> Metric:
        name = "jaxinfer:device_memory_bytes"
        text = "Memory of each device: in use, in use at most, and what may be; 0: not told."
        labels = common_labels(name, self._model_name)
        family = GaugeMetricFamily(name, text, labels=[*labels, "kind", "device"])
        for kind in ("used", "peak", "limit"):
            for device, size in enumerate(getattr(self._stats, f"memory_{kind}")):
                family.add_metric([*labels.values(), kind, str(device)], size)
        return family

    def _step_tokens(self) -> Metric:
        labels = common_labels("vllm:iteration_tokens_total", self._model_name)
        text = "Prompt tokens computed and tokens generated by a step."
        family = HistogramMetricFamily("vllm:iteration_tokens_total", text, labels=[*labels])
        counts = cumulative(STEP_TOKENS, self._stats.step_tokens)
        family.add_metric([*labels.values()], counts, self._stats.iteration_tokens)
        return family

    def _gauge(self, name: str, text: str, labels: dict[str, str], value: float) -> Metric:
        labels = common_labels(name, self._model_name) | labels
        family = GaugeMetricFamily(name, text, labels=[*labels])
        family.add_metric([*labels.values()], value)
        return family

    def _labelled(
        self,
        kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        label: str | None,
        values: dict[str, float],
    ) -> Metric:
        labels = common_labels(name, self._model_name)
        family = kind(name, text, labels=[*labels] if label is None else [*labels, label])
        for value, number in values.items():
            family.add_metric([*labels.values()] if label is None else [*labels.values(), value], number)
        return family
