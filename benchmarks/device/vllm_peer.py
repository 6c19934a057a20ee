"""Run the suite's workload through vLLM if it is installed; its weights are random, too."""

import time
from typing import Any

from benchmarks.device.context import Context
from benchmarks.device.folder import write_folder
from benchmarks.device.workload import TEMPERATURE, Job, check_lengths, make_jobs, rates


def measure(context: Context) -> None:
    """All requests at once through its `LLM`; first fewer, as with the other engines, so that it is warm too."""
    from vllm import LLM  # pyright: ignore[reportMissingImports]

    form, folder = context.form, context.work / "small"
    if not (folder / "config.json").exists():
        write_folder(folder, form.small, form.dtype)
    llm = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=form.dtype,
        max_model_len=form.max_model_len,
        max_num_seqs=form.slots,
    )
    context.save(start_seconds=round(context.seconds_since_start, 2))
    context.save(fewer=_run(llm, make_jobs(form, max(1, form.requests // 8), seed=1)))
    context.save(serving=_run(llm, make_jobs(form, form.requests)))


def _run(llm: Any, jobs: list[Job]) -> dict[str, Any]:
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]

    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=job.output, ignore_eos=True, detokenize=False)
        for job in jobs
    ]
    start = time.perf_counter()
    outputs = llm.generate([{"prompt_token_ids": job.prompt} for job in jobs], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    check_lengths(jobs, (len(output.outputs[0].token_ids) for output in outputs))
    return rates(jobs, seconds)
