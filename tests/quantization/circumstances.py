"""Engines over quantised models, in the circumstances of a request: one row of a table is checked at a time."""

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import LoadedModel, load_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.quantization.made import MADE
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.sampling import SamplingParams
from tests.quantization.checkpoints import LLAMA, Checkpoint, Writer, config_of, made
from tests.quantization.forms import AWQ, BLOCKS, GPTQ, MODELOPT, TOKEN, config_of_groups, weights
from tests.quantization.reference import Reference, ReferenceJudge
from tests.quantization.rounding import int8_values, rounded
from tests.quantization.writers import awq, e2m1, fp8
from tests.quantization.writers import compressed_tensors as integers
from tests.quantization.writers.gptq import gptq
from tests.runner.pairwise import pairwise
from tests.runner.tiny import Output, check_all, check_logprobs, drive, make_core, tiny_shapes

SMALL = {
    **LLAMA,
    **{"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "rope_theta": 10000.0},
}
WINDOWED = {
    **{"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "layer_types": ["sliding_attention", "full_attention"],
}
"""The window comes first: what the last layer gives at a token of the prompt is used by nothing."""
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
}
KINDS: dict[str, dict[str, Any]] = {"dense": SMALL, "windowed": {**SMALL, **WINDOWED}, "experts": {**SMALL, **EXPERTS}}

STATIC = {**TOKEN, "strategy": "tensor", "dynamic": False}
FORMS: dict[str, tuple[dict[str, Any], Writer]] = {
    "w4a16": (
        config_of_groups("pack-quantized", weights(4, "group", group_size=32, symmetric=False)),
        partial(integers.packed, zeros=True),
    ),
    "mxfp4": (
        config_of_groups("mxfp4-pack-quantized", weights(4, "group", type="float", group_size=32)),
        e2m1.mxfp4,
    ),
    "awq": ({**AWQ, "group_size": 32}, awq.gemm),
    "gptq-order": (
        {**GPTQ, "group_size": 32, "desc_act": True, "sym": False},
        partial(gptq, order="inputs", symmetric=False),
    ),
    "w4a16-order": (
        config_of_groups("pack-quantized", weights(4, "group", group_size=32, actorder="group")),
        integers.ordered,
    ),
    "fp8-blocks": ({**BLOCKS, "weight_block_size": [24, 32]}, partial(fp8.by_blocks, block=(24, 32))),
    "w8a8": (config_of_groups("int-quantized", weights(8, "channel"), input_activations=TOKEN), integers.whole),
    "w8a8-static": (config_of_groups("int-quantized", weights(8, "channel"), input_activations=STATIC), integers.whole),
    "nvfp4": (MODELOPT, partial(e2m1.nvfp4, compressed=False)),
}
"""Of checkpoints; in those of `w8a8-static` activations stay as they are."""
ACTIVATIONS = {"int8-w8a8": "int8", "fp8-w8a8": "e4m3", "w8a8": "int8"}
"""Schemes that round them, and to what."""

TABLE: dict[str, Sequence[Any]] = {
    "scheme": [*MADE, *FORMS],
    "kind": list(KINDS),
    "chunk": [None, 5],
    "prefix": [False, True],
    "sequences": [1, 3],
    "devices": [1, 2],
}
BLOCK, PROMPT, COMMON, TOKENS = 4, 23, 11, 6
LEAST_SURE = 2
"""Tokens of the longest sequence of a row that are compared at least."""


class Row(NamedTuple):
    """chunk: most tokens of a prompt in one step. prefix: whether a request before has left blocks of the prompt.
    sequences: `n`. devices: over which the weights are split."""

    scheme: str
    kind: str
    chunk: int | None
    prefix: bool
    sequences: int
    devices: int

    def __str__(self) -> str:
        chunk = "in-one" if self.chunk is None else f"by-{self.chunk}"
        prefix = "hit" if self.prefix else "new"
        return f"{self.scheme}-{self.kind}-{chunk}-{prefix}-n{self.sequences}-tp{self.devices}"


ROWS = [Row(**row) for row in pairwise(TABLE)]


def checkpoint_of(scheme: str, kind: str = "dense") -> Checkpoint:
    """Of a scheme that is made while it is read, what is written is plain, and `plain` the values that result."""
    quantization, writer = FORMS.get(scheme, ({}, partial(_rounded, scheme)))
    config, tensors, plain = made(KINDS[kind], quantization, writer, left=("lm_head", "gate"))
    norms = {name: 1 + tensor for name, tensor in plain.items() if tensor.ndim == 1}
    if scheme in FORMS:
        return Checkpoint(config, {**tensors, **norms}, {**plain, **norms})
    del config["quantization_config"]
    tables = {name: int8_values(plain[name]) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    return Checkpoint(config, {**tensors, **norms}, {**plain, **norms, **tables})


def _rounded(
    scheme: str, rng: np.random.Generator, module: str, rows: int, depth: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    values = (rng.standard_normal((rows, depth)) * 0.1).astype("f4")
    return {f"{module}.weight": values}, rounded(scheme, values)


def model_of(row: Row, folder: Path) -> LoadedModel:
    config = config_of(folder)
    config = config.quantised(row.scheme) if row.scheme in MADE else config
    mesh = make_mesh(MeshConfig({"tensor": row.devices})) if row.devices > 1 else None
    return load_model(folder, config, dtype=jnp.dtype(jnp.float32), mesh=mesh)


def check(row: Row, folder: Path) -> None:
    """Runs an engine over the row's model, written into `folder`; its tokens and logits must be the reference's."""
    checkpoint = checkpoint_of(row.scheme, row.kind)
    model = model_of(row, checkpoint.write(folder))
    _check_split(row, model)
    runner = JaxRunner(model, tiny_shapes(model, max_num_seqs=3, max_num_batched_tokens=32, max_model_len=40))
    runner.warm_up(when="lazy")
    core = make_core(runner, ahead=0, long_prefill_token_threshold=row.chunk)
    judge = ReferenceJudge(Reference(checkpoint.config, checkpoint.plain, ACTIVATIONS.get(row.scheme, "none")))
    prompt = _prompt(judge, model.config.vocab_size)
    if row.prefix:
        drive(core, [GenerateRequest("before", prompt[:COMMON], _sampling(1))])
    before = core.stats().core.steps
    request = GenerateRequest("asked", prompt, _sampling(row.sequences))
    outputs = drive(core, [request])

    cached = COMMON // BLOCK * BLOCK if row.prefix else 0
    assert {output.cached for output in outputs.values()} == {cached}
    chunks = -(-(PROMPT - cached) // (row.chunk or PROMPT))
    forks = int(row.sequences > 1)  # may begin a step after the prompt's last
    assert chunks <= core.stats().core.steps - before - (TOKENS - 1) <= chunks + forks
    assert len({tuple(output.tokens) for output in outputs.values()}) == row.sequences
    sure = {key: _cut(output, judge.sure([*prompt, *output.tokens]) - PROMPT + 1) for key, output in outputs.items()}
    assert max(len(output.tokens) for output in sure.values()) >= LEAST_SURE
    check_all(judge, [request], sure)
    for output in sure.values():
        check_logprobs(judge, request, output)


def _check_split(row: Row, model: LoadedModel) -> None:
    split = sum(array.addressable_shards[0].data.shape != array.shape for array in model.weights)
    assert (split >= 3) == (row.devices > 1), split


def _prompt(judge: ReferenceJudge, vocabulary: int) -> list[int]:
    """One in which nothing may be rounded either way."""
    prompts = (np.random.default_rng(seed).integers(0, vocabulary, PROMPT).tolist() for seed in range(100))
    return next(prompt for prompt in prompts if judge.sure(prompt) == PROMPT)


def _sampling(sequences: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=5, n=sequences, max_tokens=TOKENS, logprobs=20, ignore_eos=True)


def _cut(output: Output, count: int) -> Output:
    return replace(output, tokens=output.tokens[: max(count, 0)], logprobs=output.logprobs[: max(count, 0)])


def main(numbers: Sequence[str]) -> None:
    """Checks rows by their numbers, in a process that has devices enough."""
    for number in map(int, numbers):
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(ROWS[number], Path(folder))
            except Exception as error:
                error.add_note(str(ROWS[number]))
                raise


if __name__ == "__main__":
    main(sys.argv[1:])
