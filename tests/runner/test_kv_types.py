"""Keys and values kept in few bits: every way to compute a token sees them as they were rounded once."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from jaxinfer_kernels import KVLayout, gpu_blocks

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.quantization.kv import KVCodes
from jaxinfer.runner.fit.costs import step_costs
from jaxinfer.runner.fit.memory import block_bytes
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.programs.compiled import Programs
from jaxinfer.runner.step.group_attention import block_sizes, token_bytes, with_backend
from jaxinfer.runner.tuning.attention_check import check_attention
from jaxinfer.runner.tuning.kernel_backends import kernel_interpreter
from tests.runner.tiny import (
    Judge,
    check_all,
    check_logprobs,
    drive,
    greedy,
    make_core,
    random_prompt,
    seeded,
    tiny_model,
    tiny_shapes,
)
from tests.turns import one_of

CODES: list[KVCodes] = ["int8", "bfloat16", "float8_e4m3fn"]


@cache
def made(codes: KVCodes | None, windows: tuple[int | None, ...]) -> tuple[JaxRunner, Judge]:
    model = tiny_model(windows, codes=codes)
    runner = JaxRunner(model, tiny_shapes(model, max_num_seqs=8))
    runner.warm_up(when="lazy")
    return runner, Judge(model)


@pytest.mark.few(1)
@pytest.mark.parametrize("windows", [(None, None), (None, 12)], ids=["full", "windowed"])
@pytest.mark.parametrize("codes", one_of(len(CODES), CODES))
def test_chunks_prefix_hits_and_forks(codes: KVCodes, windows: tuple[int | None, ...]) -> None:
    runner, judge = made(codes, windows)
    rng = np.random.default_rng(30)
    common = random_prompt(rng, 24)
    requests = [
        GenerateRequest("chunks", random_prompt(rng, 45), greedy(8, logprobs=5, prompt_logprobs=5)),
        GenerateRequest("forks", [*common, *random_prompt(rng, 6)], seeded(8, 3, n=3, logprobs=5)),
        GenerateRequest("hit", [*common, *random_prompt(rng, 5)], seeded(8, 4, logprobs=5)),
    ]
    core = make_core(runner, long_prefill_token_threshold=7)
    for hits in (0, 24):
        outputs = drive(core, requests)
        check_all(judge, requests, outputs)
        for request in requests:
            for index in range(request.sampling.n):
                output = outputs[request.request_id, index]
                if request.sampling.prompt_logprobs is None:
                    output = replace(output, prompt_logprobs=None)
                check_logprobs(judge, request, output)
        assert outputs["hit", 0].cached >= hits


@pytest.mark.parametrize("codes", CODES)
def test_tokens_are_rounded(codes: KVCodes) -> None:
    """Or the tests above would hold for keys and values as they are."""
    tokens = random_prompt(np.random.default_rng(31), 60)
    plain, rounded = (made(kept, (None, None))[1].logits(tokens) for kept in (None, codes))
    assert 3e-3 < np.abs(plain - rounded).max() < 3


@pytest.mark.parametrize("codes", ["bfloat16", "float8_e4m3fn"])
def test_a_step_does_not_widen_all_blocks(codes: KVCodes) -> None:
    """As XLA on a CPU does with arrays of short floats (e4m3 in jax 0.12; bfloat16 before 0.11)."""
    model = tiny_model((None, None), codes=codes)
    shapes = tiny_shapes(model, blocks=4096)
    steps = Programs(model, shapes).compile(("decode", 8))
    assert steps.memory_analysis().temp_size_in_bytes < 4096 * block_bytes(model, 0, 4) / 4


@pytest.mark.parametrize(("codes", "width"), [(None, 4), ("bfloat16", 2), ("float8_e4m3fn", 1), ("int8", 1)])
def test_costs_and_block_sizes_are_of_the_type(codes: KVCodes | None, width: int) -> None:
    model = tiny_model((None, 12), codes=codes)
    assert step_costs(model).kv_bytes == (2 * 2 * 8 * width,) * 2
    assert token_bytes(model, 0) == 2 * 2 * 8 * width
    on_gpu = with_backend(model, 0, "mosaic_gpu")
    assert block_sizes(on_gpu, 0) == gpu_blocks(8, 8, narrow=width == 1)


@pytest.mark.long
@pytest.mark.parametrize("codes", one_of(len(CODES), CODES))
def test_the_kernel_for_tpus_passes_the_check(codes: KVCodes) -> None:
    model = with_backend(tiny_model(codes=codes), 0, "mosaic_tpu", KVLayout.HEADS)
    with kernel_interpreter(model):
        check_attention(model, tiny_shapes(model, block_size=32), 0)
