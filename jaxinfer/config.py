"""EngineConfig: one tree of frozen dataclasses, read from YAML and from flags alike.

Flag names are vLLM's where vLLM has the flag. Every field is validated when the tree is built, so
that a bad value is reported before a model is loaded. Nothing here imports jax.
"""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxinfer.errors import ParameterError
from jaxinfer.speculation import read_speculation

FairShare = Literal["key", "user", "off"]
SchedulingPolicy = Literal["fcfs", "priority", "sjf", "shortest_job_first"]
DType = Literal["auto", "bfloat16", "float16", "float32"]
Quantization = Literal["none", "int8", "int4", "fp8", "int8-w8a8", "fp8-w8a8"]
KVCacheDType = Literal["auto", "bf16", "bfloat16", "fp8", "fp8_e4m3", "int8"]
Device = Literal["auto", "cpu", "cuda", "gpu", "tpu"]
AttentionBackend = Literal["auto", "xla", "mosaic_tpu", "mosaic_gpu", "native"]
CompileTime = Literal["auto", "first", "all", "lazy"]


@dataclass(frozen=True)
class ModelConfig:
    """The model to serve, its format and its tokenizer."""

    dtype: DType = "auto"
    """Type of weights and activations; auto: bfloat16 on GPU and TPU, float32 on CPU."""
    max_model_len: int | None = None
    """Most tokens in prompt and output together; by default what config.json declares."""
    revision: str | None = None
    """Branch, tag or commit of a hub model."""
    tokenizer: str | None = None
    """Folder or hub id of another tokenizer and chat template; by default the model's own."""
    chat_template: str | None = None
    """Chat template instead of the model's own: a file, the name of one of the model's, or a built-in one (chatml,
    gemma, llama3, mistral)."""
    default_chat_template_kwargs: str | None = None
    """Arguments of the chat template where a request gives no others, as JSON: {"enable_thinking": false}."""
    architecture: str | None = None
    """Read config.json as that of this architecture, whatever it names. `jaxinfer models` lists them."""
    ignore_config_keys: tuple[str, ...] = ()
    """Unknown keys of config.json that are ignored, although their names suggest that they change what is computed;
    one that stands inside an object may be named as rope_scaling.alpha."""
    quantization: Quantization = "none"
    """Hold the weights in fewer bits, made of them while they are read: int8 or fp8, a scale a row; int4, a scale for
    32 values; w8a8: activations in as many bits, too, with a scale a token. Embedding and head become int8."""
    seed: int | None = None
    """Seed of requests that bring none (each gets its own from it); by default another at every start."""

    def __post_init__(self) -> None:
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2)
        _ = self.template_kwargs  # which raises for what is wrong

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """`default_chat_template_kwargs` as they are. Raises ParameterError."""
        name, text = "default_chat_template_kwargs", self.default_chat_template_kwargs
        try:
            value = {} if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ParameterError(name, f"must be JSON: {error}") from None
        if not isinstance(value, dict):
            raise ParameterError(name, f"must be a JSON object, not {text}")
        return value


@dataclass(frozen=True)
class CacheConfig:
    """KV blocks and prefix reuse."""

    block_size: int | None = None
    """Tokens a KV block; by default 16 on CPU, 64 on GPU, 128 on TPU. A power of two, 1 to 256."""
    kv_cache_dtype: KVCacheDType = "auto"
    """Type of keys and values in KV blocks; auto: that of activations. fp8 (fp8_e4m3) and int8 have a scale a layer for
    keys and one for values: the checkpoint's, where it has some for this type; else 1 for fp8, measured at startup for
    int8."""
    num_blocks: int | None = None
    """KV blocks to allocate, over all shards of attention; by default what fits in memory. On a CPU 4,096 a shard in an
    eighth of the machine's memory or the container's, more if the longest sequence needs more, and at most half of what
    weights leave."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory that weights, blocks and temporaries may take."""
    kv_watermark: float = 0.01
    """Share of the blocks that admitting a new request must leave free."""
    enable_prefix_caching: bool = True
    """Reuse KV blocks of equal prefixes across requests."""
    prefix_cache_max_tokens: int | None = None
    """Tokens kept for reuse though no request holds them, at most, over all shards of attention; the least recently
    used go first. By default all."""

    def __post_init__(self) -> None:
        if self.block_size is not None:
            size = self.block_size
            if not 1 <= size <= 256 or size & (size - 1):
                raise ParameterError("block_size", f"{size} must be a power of two from 1 to 256")
        if self.num_blocks is not None:
            _at_least("num_blocks", self.num_blocks, 2)
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ParameterError("gpu_memory_utilization", "must be above 0 and at most 1")
        if not 0.0 <= self.kv_watermark < 1.0:
            raise ParameterError("kv_watermark", "must be at least 0 and below 1")
        if self.prefix_cache_max_tokens is not None:
            _at_least("prefix_cache_max_tokens", self.prefix_cache_max_tokens, 0)
            if not self.enable_prefix_caching:
                raise ParameterError("prefix_cache_max_tokens", "needs enable_prefix_caching: it bounds what is kept")


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step, and the order of requests."""

    max_num_seqs: int | Literal["auto"] = "auto"
    """Slots: requests that run at once; auto: 32 on CPU, 256 on GPU and TPU, 1,024 on those of 64 GiB or more, fewer
    where their state does not fit. Over all shards of attention (the mesh axis data), which have equally many."""
    max_num_batched_tokens: int | Literal["auto"] = "auto"
    """Tokens a step computes at most, over all shards of attention; auto: 512 on CPU, 8,192 on a device of 64 GiB or
    more, else 2,048, and at least a row a slot."""
    max_scored: int | None = None
    """Positions a step scores at most, over all shards of attention; by default max_num_seqs, and 64 more in each shard
    for `prompt_logprobs`."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """Who is served first: who came first; the lowest `priority` of a request; or the shortest uncached prompt."""
    priority_ageing_seconds: float | None = None
    """Waiting time that is worth a level of priority, by default 60; 0: strict priorities, which may starve some."""
    sjf_tokens_per_second: float | None = None
    """Prompt tokens that a second of waiting makes up for, by default 1,000; 0: none, which may starve long prompts."""
    fair_share: FairShare = "key"
    """Whose waiting request is next, within a priority: each API key has its share of the tokens; user: each `user` of
    a key has its share of the key's, too; off: the scheduling policy alone decides."""
    max_num_partial_prefills: int | None = None
    """Prompts at once that one step does not finish; they leave short ones a share of each. By default no bound."""
    long_prefill_token_threshold: int | None = None
    """Prompt tokens a step computes of one request at most; by default no bound of its own."""
    enable_chunked_prefill: bool = True
    """Split prompts over steps; without it a prompt is computed in one step, whole."""
    overlap: bool = True
    """Plan and dispatch a step before the results of the last one are read."""
    fast_forward: bool = True
    """Compute tokens that a grammar forces in one step, where that is faster, instead of one after another."""
    decode_steps: int = 1
    """Decode steps of one dispatch at most, 1 to 64: while nobody can enter and no row needs the host. Tokens come in
    pieces of as many, and new requests wait as long."""
    speculative_config: str | None = None
    """Drafts of the next tokens, which a step checks all at once, as JSON: {"method": "ngram",
    "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}, {"model": FOLDER} of a smaller model
    with the same tokens, or {"method": "eagle3", "model": FOLDER} of a head, which pipelines do not take. Draws do not
    depend on drafts; in float32 texts stay the same but for a draw that falls on a boundary, in bfloat16 more differ.
    By default none."""
    max_waiting: int = 1024
    """Requests that may wait; more are refused with 429. With fair sharing this is for one tenant alone: another that
    comes when so many wait may have half of what is free of twice as many places, and so on."""
    disable_log_stats: bool = False
    """Do not log a line of statistics every 10 s while there is work."""
    max_step_retries: int = 2
    """Retries of a request whose step fails without progress, before it ends with an error. The last retry runs alone
    while others wait, so that a request that always fails ends by itself."""

    step_timeout: float = 120.0
    """Seconds that a step may take, compiling not counted. One that takes longer has stalled: the engine ends, and
    `serve` starts it again. 0: no limit."""

    def __post_init__(self) -> None:
        if self.max_num_seqs != "auto":
            _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_waiting", self.max_waiting, 1)
        _at_least("max_step_retries", self.max_step_retries, 0)
        if not (math.isfinite(self.step_timeout) and self.step_timeout >= 0):
            raise ParameterError("step_timeout", f"{self.step_timeout} must be a finite number, at least 0")
        rows = 1 if self.max_num_seqs == "auto" else self.max_num_seqs
        for name in ("max_num_batched_tokens", "max_scored"):
            value = getattr(self, name)
            if value not in (None, "auto") and value < rows:
                raise ParameterError(name, f"{value} must be at least max_num_seqs, {rows}")
        if not 1 <= self.decode_steps <= 64:
            raise ParameterError("decode_steps", f"{self.decode_steps} is out of range; 1 to 64 is allowed")
        if read_speculation(self.speculative_config) is not None and self.decode_steps > 1:
            raise ParameterError("decode_steps", "must be 1 with speculative_config, whose steps give several tokens")
        self._check_prefills()
        self._check_policy()

    def _check_prefills(self) -> None:
        for name in ("long_prefill_token_threshold", "max_num_partial_prefills"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)
                if not self.enable_chunked_prefill:
                    raise ParameterError(name, "needs enable_chunked_prefill: it splits prompts")

    def _check_policy(self) -> None:
        if self.scheduling_policy == "shortest_job_first":
            object.__setattr__(self, "scheduling_policy", "sjf")
        for name, policy in (("priority_ageing_seconds", "priority"), ("sjf_tokens_per_second", "sjf")):
            value = getattr(self, name)
            if value is None:
                continue
            if self.scheduling_policy != policy:
                raise ParameterError(name, f"needs scheduling_policy {policy}")
            if not (math.isfinite(value) and value >= 0):
                raise ParameterError(name, f"{value} must be a finite number, at least 0")


@dataclass(frozen=True)
class ParallelConfig:
    """Over which devices a model is split, and how."""

    mesh: str | None = None
    """A mesh by name, as tp4, or a YAML file: sizes of axes, sharding rules and a topology (configs/meshes). auto: over
    as few devices as leave room for KV blocks, in as many groups as there are devices. By default one device."""
    tensor_parallel_size: int | None = None
    """Devices that attention, MLPs and vocabulary are split over; by default what --mesh has."""
    pipeline_parallel_size: int | None = None
    """Stages, each of which has some of the layers and devices of its own; by default what --mesh has."""
    pipeline_layers: str | None = None
    """The layers of each stage, as 0-14,15-31; by default such that a decode step reads about as much in each."""
    enable_expert_parallel: bool = False
    """Each device of tensor parallelism has whole experts, instead of some channels of every expert."""
    attention_data_parallel: int | None = None
    """Groups of devices that attend for different requests, each with KV blocks of its own; by default what --mesh
    has."""
    redundant_experts: int = 0
    """Copies of experts in each layer, beside them, where a mesh splits experts. They are placed by the load that is
    measured, so that the busiest device has less."""
    expert_placement_steps: int = 3000
    """Steps after which experts are placed anew, where there are copies (redundant_experts) and it helps; 0: never."""

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "attention_data_parallel", "pipeline_parallel_size"):
            value = getattr(self, name)
            if value is not None:
                _at_least(name, value, 1)
        for name in ("redundant_experts", "expert_placement_steps"):
            _at_least(name, getattr(self, name), 0)


@dataclass(frozen=True)
class RunnerConfig:
    """Compilation and execution of programs."""

    device: Device = "auto"
    """The device to run on. auto: what JAX finds; a CPU is refused if a plug-in for GPUs (cuda) or TPUs is installed,
    which then does not work. cpu: the CPU, whatever there is."""
    attention_backend: AttentionBackend = "auto"
    """Paged attention's implementation; auto: the fastest on this device, checked and timed at start where there is a
    choice; on a CPU native, if it was built."""
    compile: CompileTime = "auto"
    """When programs are compiled. first: those of a few sizes before readiness, to which steps are padded; the others
    follow while requests are served. all: all before readiness, as always with several hosts. lazy: each when a step
    first needs it. auto: all on a GPU, where compiling needs memory that steps use, else first."""
    compile_cache_dir: str | None = None
    """Folder of compiled programs; by default under the user's cache folder. `off` keeps none."""
    compile_cache_key: str | None = None
    """File with a key (at least 32 bytes) that signs compiled programs, in place of this user's own: servers with the
    same key load what `jaxinfer compile` wrote."""
    cuda_graphs: Literal["auto", "on", "off"] = "auto"
    """CUDA graphs of a GPU's steps; auto: a step's program is one graph, unless XLA_FLAGS says otherwise; on: whatever
    it says; off: none."""
    scan_layers: Literal["auto", "on", "off"] = "auto"
    """Layers that are alike as one loop over matrices that are held as one array: programs compile sooner, and a step
    is handed to several devices sooner; while weights are read, host memory holds all layers of a matrix at once. auto:
    on a CPU, and on several TPU devices, where this copies no weights."""
    fault_folder: str | None = None
    """Folder in which a step that fails leaves the last thousand calls of the device, for `scripts/replay_fault.py`;
    they hold the tokens of requests. By default none are kept."""
    xla_flags: str = ""
    """More options of XLA for every program, as "xla_gpu_autotune_level=2 xla_gpu_enable_triton_gemm=false"; they come
    before all others."""

    def __post_init__(self) -> None:
        if self.device == "cuda":
            object.__setattr__(self, "device", "gpu")
        if self.compile_cache_dir == "":
            raise ParameterError("compile_cache_dir", "must not be empty; `off` keeps no programs")
        for word in self.xla_flags.split():
            if not re.fullmatch(r"(--)?xla_\w+(=\S*)?", word):
                raise ParameterError("xla_flags", f"{word} must be an option of XLA, as xla_gpu_autotune_level=2")


@dataclass(frozen=True)
class HostsConfig:
    """Hosts that run one engine together; each is given the same settings but for its `host_id`."""

    coordinator: str | None = None
    """HOST:PORT of host 0, which the others join at the next port; auto: as the launcher's environment says
    (LeaderWorkerSet, Slurm, TPU VMs and GKE). By default one host."""
    num_hosts: int | None = None
    """Hosts in all; by default as the launcher's environment says."""
    host_id: int | None = None
    """Number of this host, from 0; host 0 schedules and serves. By default as the launcher's environment says."""
    hosts_key: str | None = None
    """A secret that all hosts share; by default $JAXINFER_HOSTS_KEY. Without one hosts join on loopback only."""


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine is made from."""

    model: str = "demo"
    """A folder in Hugging Face layout, a hub id `owner/name`, or `demo`, the model in the package."""
    load: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    runner: RunnerConfig = field(default_factory=RunnerConfig)
    hosts: HostsConfig = field(default_factory=HostsConfig)


def _at_least(name: str, value: int, low: int) -> None:
    if value < low:
        raise ParameterError(name, f"{value} must be at least {low}")
