"""Forms of the suite: the sizes it runs with, on a GPU, on a CPU, and in tests."""

from dataclasses import dataclass
from typing import Any, Literal

FormName = Literal["gpu", "cpu", "tiny"]


@dataclass(frozen=True)
class Form:
    """Sizes of every part.

    small, large: config.json of the two models. rows: rows of the decode steps timed. context: tokens in KV before a
    timed step. prefills: (rows, tokens a row) of the prefill steps timed. steps: steps in one timed run. repeats:
    timed runs. copy_bytes, matmul_sizes: of the ceilings. requests: of the serving workload, its lengths drawn from
    shortest to longest, in and out. slots: max_num_seqs. max_model_len: of the engine.
    """

    name: FormName
    small: dict[str, Any]
    large: dict[str, Any]
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
        return "bfloat16" if self.name == "gpu" else "float32"


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


GPU = Form(
    name="gpu",
    small=_decoder("qwen3", 151936, 1024, 3072, 28, 16, 8, 128),  # Qwen3-0.6B
    large=_decoder("llama", 128256, 4096, 14336, 32, 32, 8, 128),  # Llama-3.1-8B
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

CPU = Form(
    name="cpu",
    small=_decoder("qwen3", 4096, 128, 384, 2, 4, 2, 32),
    large=_decoder("llama", 4096, 256, 768, 2, 8, 2, 32),
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
    small=_decoder("qwen3", 512, 32, 64, 2, 4, 2, 8),
    large=_decoder("llama", 512, 32, 64, 2, 4, 2, 8),
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

FORMS: dict[str, Form] = {form.name: form for form in (GPU, CPU, TINY)}
