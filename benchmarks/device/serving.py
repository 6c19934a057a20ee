"""nano-vllm's workload through `LLM`, from a cold start; first a smaller one, so that something is known early."""

import time
from typing import Any

from benchmarks.device.context import Context
from benchmarks.device.engine import start_engine
from benchmarks.device.workload import TEMPERATURE, Job, check_lengths, make_jobs, rates
from jaxinfer.llm import LLM
from jaxinfer.sampling import SamplingParams


def measure(context: Context) -> None:
    """Output tokens a second of all requests at once; every output has exactly the length asked for."""
    llm = start_engine(context)
    few = max(1, context.form.requests // 8)
    context.save(fewer=_run(llm, make_jobs(context.form, few, seed=1)))
    context.save(serving=_run(llm, make_jobs(context.form, context.form.requests)))
    llm.close()


def _run(llm: LLM, jobs: list[Job]) -> dict[str, Any]:
    params = [SamplingParams(temperature=TEMPERATURE, max_tokens=job.output, ignore_eos=True) for job in jobs]
    before, start = llm.engine.stats(), time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": job.prompt} for job in jobs], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    check_lengths(jobs, (len(output.outputs[0].token_ids) for output in outputs))
    after = llm.engine.stats()
    return {
        **rates(jobs, seconds),
        "steps": after.core.steps - before.core.steps,
        "preemptions": after.scheduler.preemptions - before.scheduler.preemptions,
        "compiles_after_ready": after.device.compiles_after_ready,
    }
