"""Run the suite's workload through transformers' continuous batching."""

import time
from typing import Any

from benchmarks.device.context import Context
from benchmarks.device.folder import write_folder
from benchmarks.device.workload import TEMPERATURE, Job, make_jobs, rates

_MARGIN_SECONDS = 15


def measure(context: Context) -> None:
    """All requests at once with lengths of their own, which `generate_batch` cannot give: its manager is used directly.

    Where time runs out, only requests that were done by then are counted, and `complete` is false: the rate is then
    less than what it made.
    """
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    form, folder = context.form, context.work / "small"
    if not (folder / "model.safetensors").exists():
        write_folder(folder, form.small, form.dtype)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, form.dtype))
    model = model.to(device).eval()
    settings = GenerationConfig(
        do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, eos_token_id=-1, max_new_tokens=form.longest
    )
    with model.continuous_batching_context_manager(settings, block=False) as manager:
        context.save(start_seconds=round(context.seconds_since_start, 2), attention=model.config._attn_implementation)
        few = make_jobs(form, max(1, form.requests // 8), seed=1)
        context.save(fewer=_run(manager, few, context.deadline - _MARGIN_SECONDS))
        context.save(serving=_run(manager, make_jobs(form, form.requests), context.deadline - _MARGIN_SECONDS))


def _run(manager: Any, jobs: list[Job], until: float) -> dict[str, Any]:
    start = time.perf_counter()
    left = {manager.add_request(job.prompt, max_new_tokens=job.output, eos_token_id=-1): job for job in jobs}
    done: list[Job] = []
    while left and time.time() < until:
        output = manager.get_result(timeout=0.5)
        if output is None:
            if not manager.is_running():
                raise RuntimeError("the manager's thread has ended")
        elif output.is_finished():
            job = left.pop(output.request_id)
            if len(output.generated_tokens) != job.output:
                made = len(output.generated_tokens)
                raise RuntimeError(f"{made} tokens were made, {job.output} were asked for; {output.error}")
            done.append(job)
    seconds = time.perf_counter() - start
    for name in left:
        manager.cancel_request(name)
    return {**rates(done, seconds), "complete": not left}
