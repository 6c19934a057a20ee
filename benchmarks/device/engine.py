"""The engine under test: `LLM` over the small model's folder, as a user would start it."""

import time
from pathlib import Path
from typing import Any

from benchmarks.device.context import Context
from benchmarks.device.folder import write_folder
from jaxinfer.llm import LLM


def start_engine(context: Context) -> LLM:
    """Writes the folder where it is not there yet, starts the engine, and saves what the start took.

    start_seconds is from the start of the process, with the imports and without writing the folder; the compile cache
    is cold where its folder held nothing.
    """
    form, cache = context.form, context.work / "engine-xla"
    folder, writing = small_folder(context)
    before = len(list(cache.glob("*"))) if cache.exists() else 0
    begun = time.perf_counter()
    llm = LLM(
        str(folder),
        max_num_seqs=form.slots,
        max_model_len=form.max_model_len,
        compile_cache_dir=str(cache),
        compile="all",  # nothing is compiled beside what is measured
    )
    built = time.perf_counter() - begun
    context.save(
        start={
            "start_seconds": round(context.seconds_since_start - writing, 2),
            "of_which_engine": round(built, 2),
            "compile_cache": "warm" if before else "cold",
            "files_in_compile_cache": before,
        },
        folder_seconds=round(writing, 2),
        engine=_sizes(llm),
    )
    return llm


def small_folder(context: Context) -> tuple[Path, float]:
    """The small model's folder, and the seconds that writing it took: 0 where it was there."""
    folder, begun = context.work / "small", time.perf_counter()
    if (folder / "model.safetensors").exists():
        return folder, 0.0
    write_folder(folder, context.form.small, context.form.dtype)
    return folder, time.perf_counter() - begun


def _sizes(llm: LLM) -> dict[str, Any]:
    info = llm.info
    return {
        "max_num_seqs": info.max_num_seqs,
        "max_model_len": info.max_model_len,
        "block_size": info.block_size,
        "num_blocks": info.num_blocks,
        "max_num_batched_tokens": llm.engine.runner.shapes.max_num_batched_tokens,
    }
