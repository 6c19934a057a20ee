"""The same workload through vLLM, where it is installed; its weights are random too."""

import time
from importlib.util import find_spec

from benchmarks.gpu.context import Context
from benchmarks.gpu.folder import write_folder
from benchmarks.gpu.workload import TEMPERATURE, make_jobs, rates


def measure(context: Context) -> None:
    """All requests at once through its `LLM`."""
    if find_spec("vllm") is None:
        context.save(skipped="vllm is not installed")
        return
    from vllm import LLM, SamplingParams  # pyright: ignore[reportMissingImports]

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
    jobs = make_jobs(form, form.requests)
    params = [
        SamplingParams(temperature=TEMPERATURE, max_tokens=job.output, ignore_eos=True, detokenize=False)
        for job in jobs
    ]
    start = time.perf_counter()
    llm.generate([{"prompt_token_ids": job.prompt} for job in jobs], params, use_tqdm=False)
    context.save(serving=rates(jobs, time.perf_counter() - start))
