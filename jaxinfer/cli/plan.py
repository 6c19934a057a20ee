"""`jaxinfer plan`: what a model takes of meshes that need not be here, and how fast they could be. Reads no weights."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from jaxinfer.cli.declared import read_decoder
from jaxinfer.cli.flags import parse_flags
from jaxinfer.config import (
    CacheConfig,
    DType,
    EngineConfig,
    KVCacheDType,
    ModelConfig,
    ParallelConfig,
    Quantization,
    SchedulerConfig,
)
from jaxinfer.errors import ParameterError, quoted
from jaxinfer.parallel.asked_mesh import asked_mesh
from jaxinfer.quantization.kv import KV_CODES

if TYPE_CHECKING:
    from jaxinfer.model_config.decoder_config import DecoderConfig
    from jaxinfer.plan.estimate import MeshPlan, Workload


class _Asked(NamedTuple):
    """What the flags say."""

    model: str
    mesh: tuple[str, ...]
    chip: str | None
    config: EngineConfig
    architecture: str | None
    quantization: Quantization
    batch: int
    workload: str
    expert_imbalance: float
    json: bool


def run(arguments: Sequence[str]) -> int:
    """Prints a table; `--json` prints it for programs."""
    asked: _Asked = parse_flags(_flags, "plan", arguments)
    from jaxinfer.plan.report import report, table

    decoder, architecture = read_decoder(asked.model, asked.architecture)
    decoder = decoder.quantised(asked.quantization).keeping(KV_CODES[asked.config.cache.kv_cache_dtype])
    workload = _workload(asked.workload)
    plans = [_plan(asked, decoder, name) for name in asked.mesh]
    told = report(asked.model, architecture, plans, workload, asked.batch)
    if asked.json:
        json.dump(told, sys.stdout, indent=2)
        print()
    else:
        print("\n".join(table(told)))
    return 0


def _flags(
    model: Annotated[str, tyro.conf.Positional] = "demo",
    mesh: tuple[str, ...] = ("single",),
    chip: str | None = None,
    dtype: DType = "auto",
    architecture: str | None = None,
    quantization: Quantization = "none",
    kv_cache_dtype: KVCacheDType = "auto",
    block_size: int | None = None,
    gpu_memory_utilization: float = 0.9,
    context: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    batch: int = 32,
    workload: str = "1024,1024",
    expert_imbalance: float = 1.0,
    json: bool = False,
) -> _Asked:
    """Say what a model takes of meshes that need not be here, and how fast they could be.

    Times are the least that memory, products and links allow: an engine takes longer.

    Args:
        model: A folder, a hub id `owner/name`, a config.json, or `demo`, the model in the package.
        mesh: Meshes by name, as tp4, or YAML files.
        chip: Kind of chip for meshes that name none: a file of configs/chips, as v6e or h200.
        dtype: Type of weights and activations; auto: bfloat16.
        architecture: Read config.json as that of this architecture, whatever it names.
        quantization: How the weights are held.
        kv_cache_dtype: Type of keys and values in KV blocks; auto: that of activations.
        block_size: Tokens a KV block; by default 64 on GPU, 128 on TPU.
        gpu_memory_utilization: Share of a device's memory that everything together may take.
        context: Tokens of the longest sequence; by default what the model declares.
        max_num_seqs: Most sequences at once; by default as `serve` chooses for such a device, at least the batch.
        max_num_batched_tokens: Most tokens a step; by default as `serve` chooses.
        batch: Requests under way.
        workload: Tokens of a request, IN,OUT.
        expert_imbalance: Tokens of the busiest device's experts over the mean.
        json: Print JSON.
    """
    if not mesh:
        raise ParameterError("mesh", "needs one at least")
    for name, value in (("batch", batch), ("expert_imbalance", expert_imbalance)):
        if value < 1:
            raise ParameterError(name, f"must be at least 1, not {value}")
    config = EngineConfig(
        model,
        load=ModelConfig(dtype=dtype, architecture=architecture, max_model_len=context),
        cache=CacheConfig(
            kv_cache_dtype=kv_cache_dtype, block_size=block_size, gpu_memory_utilization=gpu_memory_utilization
        ),
        scheduler=SchedulerConfig(
            max_num_seqs="auto" if max_num_seqs is None else max_num_seqs,
            max_num_batched_tokens="auto" if max_num_batched_tokens is None else max_num_batched_tokens,
        ),
    )
    return _Asked(model, mesh, chip, config, architecture, quantization, batch, workload, expert_imbalance, json)


def _plan(asked: _Asked, decoder: "DecoderConfig", name: str) -> "MeshPlan":
    from jaxinfer.plan.chip import chip_files, read_chip
    from jaxinfer.plan.estimate import plan_mesh

    mesh = asked_mesh(ParallelConfig(mesh=name))
    chip = asked.chip if mesh.topology is None else mesh.topology.target
    if chip is None:
        raise ParameterError("chip", f"mesh {name} names no chips; give one of {', '.join(chip_files())}")
    try:
        return plan_mesh(asked.config, decoder, mesh, name, read_chip(chip), imbalance=asked.expert_imbalance)
    except ParameterError as error:
        raise ParameterError("context" if error.param == "max_model_len" else error.param, error.message) from None


def _workload(text: str) -> "Workload":
    from jaxinfer.plan.estimate import Workload

    words = text.split(",")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and 0 < int(word) < 2**31 for word in words):
        raise ParameterError("workload", f"{quoted(text)} must be IN,OUT: tokens of a request, as 1024,256")
    return Workload(*map(int, words))
