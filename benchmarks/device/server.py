"""The whole server under load: an engine's process, API processes, and a stream for every slot."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.device.context import Context
from benchmarks.device.engine import small_folder
from benchmarks.stream_client import count_events

_SECONDS, _SETTLE = 10.0, 2.0
"""Seconds that are measured on a GPU or TPU, and seconds before them."""


def measure(context: Context) -> None:
    """Tokens a second of as many streams as there are slots, with one API process and with a few."""
    folder, _ = small_folder(context)
    cores = os.cpu_count() or 1
    for workers in dict.fromkeys((1, max(1, min(4, cores // 4)))):
        with _served(context, str(folder), workers) as url:
            found = asyncio.run(_count(context, url))
        context.save(**{f"api_workers_{workers}": found})


async def _count(context: Context, url: str) -> dict[str, Any]:
    form = context.form
    prompt = [1 + i % (form.small["vocab_size"] - 1) for i in range(form.shortest)]
    body = {"prompt": prompt, "max_tokens": form.max_model_len - form.shortest - 1, "ignore_eos": True}
    seconds, settle = (1.0, 0.0) if form.platform == "cpu" else (_SECONDS, _SETTLE)
    counted = await count_events(f"{url}/v1/completions", body, form.slots, settle=settle, seconds=seconds)
    rate = counted.events / counted.seconds
    return {"streams": form.slots, "tokens_per_s": round(rate, 1), "seconds": round(counted.seconds, 3)}


@contextmanager
def _served(context: Context, folder: str, workers: int) -> Iterator[str]:
    form = context.form
    flags = {
        "max-num-seqs": form.slots,
        "max-model-len": form.max_model_len,
        "compile-cache-dir": context.work / "engine-xla",
        "api-workers": workers,
        "port": 0,
        "drain-seconds": 0,
    }
    command = [sys.executable, "-m", "jaxinfer", "serve", folder]
    command += [f"--{name}={value}" for name, value in flags.items()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if " at http" not in said:
            raise RuntimeError(f"the server did not start: {said!r}")
        yield next(word for word in said.split() if word.startswith("http"))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
