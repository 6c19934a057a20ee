"""The load of the scheduler, for gateways that spread requests."""

from typing import Any

from jaxinfer.engine.types import EngineStats, ModelInfo


def scheduler_load(info: ModelInfo, stats: EngineStats) -> dict[str, Any]:
    """The load under the names of SGLang's SchedulerLoad, which its gateway reads by HTTP and by gRPC."""
    return {
        "num_running_reqs": stats.running,
        "num_waiting_reqs": stats.waiting,
        "num_total_reqs": stats.running + stats.waiting,
        "num_used_tokens": stats.kv_blocks_used * info.block_size,
        "max_total_num_tokens": stats.kv_blocks_total * info.block_size,
        "token_usage": stats.kv_blocks_used / max(stats.kv_blocks_total, 1),
        "cache_hit_rate": stats.prefix_hits / max(stats.prefix_queries, 1),
        "utilization": stats.running / info.max_num_seqs,
        "max_running_requests": info.max_num_seqs,
    }
