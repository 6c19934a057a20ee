"""Forms of the suite: the sizes it runs with, on a GPU, on TPUs of several sizes, on a CPU, and in tests."""

from dataclasses import dataclass, replace
from typing import Any, Literal

Platform = Literal["gpu", "tpu", "cpu"]
FormName = Literal["gpu", "gpu-80gb", "gpu-32gb", "gpu-16gb", "tpu", "tpu-32gb", "tpu-16gb", "cpu", "tiny"]

_FORMS_OF: dict[str, tuple[tuple[FormName, int], ...]] = {
    "gpu": (("gpu", 96 << 30), ("gpu-80gb", 52 << 30), ("gpu-32gb", 28 << 30), ("gpu-16gb", 0)),
    "tpu": (("tpu", 60 << 30), ("tpu-32gb", 28 << 30), ("tpu-16gb", 0)),
}
"""From the largest down, with the memory that a device must have at least: what JAX tells is less than all of it, on a
GPU three quarters where nothing else is set."""


def form_name(platform: str, memory: int | None) -> FormName:
    """The form for JAX's backend (`gpu`, `tpu`, any other) with `memory` bytes a device, None where it does not say."""
    if platform not in _FORMS_OF:
        return "cpu"
    return next(name for name, least in _FORMS_OF[platform] if (memory or 0) >= least)


@dataclass(frozen=True)
class Form:
    """Sizes of every part.

    platform: what it is made for. patience: how many times as long as on a GPU's machine a part may take. small,
    large: config.json of the two models. draft, head: of a model and of an EAGLE-3 head that draft for the large one;
    draft_rows: rows of the steps timed with them. rows: rows of the decode steps timed. context: tokens in KV before
    a timed step. prefills: (rows, tokens a row) of the prefill steps timed. steps: steps in one timed run. repeats:
    timed runs. copy_bytes, matmul_sizes: of the ceilings. requests: of the serving workload, its lengths drawn from
    shortest to longest, in and out. slots: max_num_seqs. max_model_len: of the engine.
    """

    name: FormName
    platform: Platform
    patience: int
    small: dict[str, Any]
    large: dict[str, Any]
    draft: dict[str, Any]
    head: dict[str, Any]
    draft_rows: tuple[int, ...]
    rows: tuple[int, ...]
    context: int
    prefills: tuple[tuple[int, int], ...]
    steps: int
    repeats: int
    copy_bytes: int
    matmul_sizes: tuple[int, ...]
    requests: int
    shortest: int
    longest: int
    slots: int
    max_model_len: int

    @property
    def dtype(self) -> str:
        return "float32" if self.platform == "cpu" else "bfloat16"


def _decoder(family: str, vocabulary: int, hidden: int, inner: int, layers: int, heads: int, kv: int, head: int):
    return {
        "architectures": [{"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[family]],
        "model_type": family,
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": head,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "tie_word_embeddings": family == "qwen3",
        "eos_token_id": 0,
        "dtype": "bfloat16",
    }


def _tied(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "tie_word_embeddings": True}


def _head(vocabulary: int, drafts: int, hidden: int, inner: int, heads: int, kv: int, head: int):
    """An EAGLE-3 head as those that are published for the model of these sizes."""
    layer = _decoder("llama", vocabulary, hidden, inner, 1, heads, kv, head)
    return {**layer, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": drafts}


GPU = Form(
    name="gpu",
    platform="gpu",
    patience=1,
    small=_decoder("qwen3", 151936, 1024, 3072, 28, 16, 8, 128),  # Qwen3-0.6B
    large=_decoder("llama", 128256, 4096, 14336, 32, 32, 8, 128),  # Llama-3.1-8B
    draft=_tied(_decoder("llama", 128256, 2048, 8192, 16, 32, 8, 64)),  # Llama-3.2-1B
    head=_head(128256, 32000, 4096, 14336, 32, 8, 128),
    draft_rows=(1, 4, 16, 64, 128),
    rows=(1, 32, 256),
    context=1024,
    prefills=((1, 2048), (8, 256)),
    steps=32,
    repeats=5,
    copy_bytes=4 << 30,
    matmul_sizes=(4096, 8192, 16384),
    requests=256,
    shortest=100,
    longest=1024,
    slots=256,
    max_model_len=4096,
)

_SHORT_PREFILLS = ((1, 1024), (8, 256))
"""KV of 256 rows of 2048 tokens would need 89 GB beside the large model."""

GPU_80GB = replace(GPU, name="gpu-80gb", prefills=_SHORT_PREFILLS)
"""Form of an H100 or an A100."""

GPU_32GB = replace(GPU_80GB, name="gpu-32gb", rows=(1, 8, 32), draft_rows=(1, 4, 16, 32), slots=64)
"""Form of an A100 with 40 GB, an L40S or an RTX 5090: the large model has KV of fewer rows."""

GPU_16GB = replace(
    GPU_32GB,
    name="gpu-16gb",
    large=_decoder("qwen3", 151936, 2560, 9728, 36, 32, 8, 128),  # Qwen3-4B
    draft=GPU.small,
    head=_head(151936, 32000, 2560, 9728, 32, 8, 128),
    draft_rows=(1, 4, 16),
    copy_bytes=2 << 30,
    slots=32,
)
"""Form of an L4 or an RTX 4090: the large model is one that fits."""

TPU = replace(
    GPU_80GB,
    name="tpu",
    platform="tpu",
    patience=3,  # XLA compiles longer for a TPU; how much longer the whole suite takes was never measured
)
"""Form of a v5p or a v7x: rows and models are those of a GPU."""

TPU_32GB = replace(TPU, name="tpu-32gb", rows=(1, 8, 32), draft_rows=(1, 4, 16, 32), slots=64)
"""Form of a v6e or a v4: the large model has KV of fewer rows."""

TPU_16GB = replace(GPU_16GB, name="tpu-16gb", platform="tpu", patience=TPU.patience)
"""Form of a v5e: the large model is one that fits."""

CPU = Form(
    name="cpu",
    platform="cpu",
    patience=4,  # a CPU is often shared
    small=_decoder("qwen3", 4096, 128, 384, 2, 4, 2, 32),
    large=_decoder("llama", 4096, 256, 768, 2, 8, 2, 32),
    draft=_decoder("llama", 4096, 64, 192, 1, 4, 2, 16),
    head=_head(4096, 1024, 256, 768, 8, 2, 32),
    draft_rows=(1, 8),
    rows=(1, 8),
    context=128,
    prefills=((1, 128),),
    steps=16,
    repeats=3,
    copy_bytes=64 << 20,
    matmul_sizes=(512, 1024),
    requests=16,
    shortest=10,
    longest=64,
    slots=8,
    max_model_len=256,
)

TINY = Form(
    name="tiny",
    platform="cpu",
    patience=4,
    small=_decoder("qwen3", 512, 32, 64, 2, 4, 2, 8),
    large=_decoder("llama", 512, 32, 64, 2, 4, 2, 8),
    draft=_decoder("llama", 512, 16, 32, 1, 2, 2, 8),
    head=_head(512, 128, 32, 64, 4, 2, 8),
    draft_rows=(1, 2),
    rows=(2,),
    context=32,
    prefills=((2, 16),),
    steps=2,
    repeats=2,
    copy_bytes=1 << 20,
    matmul_sizes=(64,),
    requests=3,
    shortest=2,
    longest=8,
    slots=2,
    max_model_len=64,
)

FORMS: dict[str, Form] = {
    form.name: form for form in (GPU, GPU_80GB, GPU_32GB, GPU_16GB, TPU, TPU_32GB, TPU_16GB, CPU, TINY)
}
