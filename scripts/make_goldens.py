"""Makes tests/goldens: small random models of each family, and what transformers computes with them.

Families that it has no class for are computed by numpy_decoder.py.
Needs torch and transformers (the `parity` extra). Run it again only when a family is added: the files are committed.
"""

import argparse
import copy
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from golden_families import FAMILIES, SIZES, Family
from golden_files import LOGITS_STD, NEW, PROMPT, TOKENS, write_golden
from golden_numpy import NumpyModel
from numpy_decoder import DECODERS


def make(name: str, folder: Path, seed: int | None = None, new: int = NEW) -> None:
    """Writes one family's folder: config.json, model.safetensors, golden.npz. seed: by default the family's own, or the
    next that makes no near-tie. new: greedy tokens."""
    family = FAMILIES[name]
    build = functools.partial(NumpyModel if family.name in DECODERS else TransformersModel, family)
    write_golden(build, list(FAMILIES).index(name) if seed is None else seed, folder, new)


class TransformersModel:
    """A GoldenModel of a class in transformers."""

    def __init__(self, family: Family, seed: int):
        self._dtype = getattr(torch, family.dtype)
        model_class = getattr(transformers, family.name)
        # Grouped products of experts, which torch takes otherwise, want widths that are multiples of 4.
        plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
        self._model = model_class(model_class.config_class(**_fields(family), **plain)).eval()
        _draw(self._model, self._dtype, seed)

    def logits(self, ids: np.ndarray) -> np.ndarray:
        """A prompt in one piece and the rest token by token: with `dynamic` rope a key depends on when it is
        computed."""
        cache = transformers.DynamicCache(config=self._model.config)
        pieces = [torch.tensor(piece)[None] for piece in (ids[:PROMPT], *ids[PROMPT:, None])]
        with torch.no_grad():
            found = [self._model(piece, past_key_values=cache, use_cache=True).logits[0] for piece in pieces]
        return torch.cat(found).float().numpy()

    def save(self, folder: Path) -> None:
        """Save the model as transformers does, with its tensors' names on the Hub. It still computes in float32."""
        with tempfile.TemporaryDirectory() as saved:
            copy.deepcopy(self._model).to(self._dtype).save_pretrained(saved)
            config = json.loads((Path(saved) / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            shutil.copyfile(Path(saved) / "model.safetensors", folder / "model.safetensors")


def _fields(family: Family) -> dict[str, Any]:
    """SIZES are of the text part where the model sees too."""
    text = family.fields.get("text_config")
    return {**SIZES, **family.fields} if text is None else {**family.fields, "text_config": {**SIZES, **text}}


def _draw(model: Any, dtype: torch.dtype, seed: int) -> None:
    """Random weights that fit `dtype`, with logits of the wanted deviation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(_scaled(noise, name, ones=bool((weight == 1).all())))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
        probe = torch.randint(3, SIZES["vocab_size"], (1, TOKENS), generator=generator)
        _scale_logits(model, probe)
        for weight in model.parameters():
            weight.copy_(weight.to(dtype))


def _scaled(noise: torch.Tensor, name: str, *, ones: bool) -> torch.Tensor:
    """ones: the weight of a norm that multiplies by what is stored; Gemma's stores what is added to 1."""
    if "norm" in name or "ln_" in name:
        return ones + 0.2 * noise
    if noise.ndim < 2 or name.endswith("bias"):
        return 0.3 * noise
    inputs = noise.shape[-2] if name.endswith(_INPUTS_FIRST) else noise.shape[-1]
    return noise * 1.2 * inputs**-0.5


# Matrices [..., in, out], of gpt-oss' experts and GPT-2.
_INPUTS_FIRST = ("experts.gate_up_proj", "experts.down_proj", "c_attn.weight", "c_fc.weight", "c_proj.weight")


def _scale_logits(model: Any, probe: torch.Tensor) -> None:
    """Scale the logits by the last norm's weights, a few times over, since logits may be capped."""
    norm = next(module for name, module in reversed(list(model.named_modules())) if name.endswith(_LAST_NORMS))
    offset = 1 if "Gemma" in type(norm).__name__ else 0
    for _ in range(3):
        ratio = LOGITS_STD / model(probe).logits.std()
        for part in norm.parameters():
            shift = offset if part is norm.weight else 0
            part.copy_((part + shift) * ratio - shift)


_LAST_NORMS = ("model.norm", "ln_f", "final_layernorm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES], help="by default all")
    default = Path(__file__).resolve().parent.parent / "tests" / "goldens"
    parser.add_argument("--out", type=Path, default=default)
    args = parser.parse_args()
    for name in args.families or FAMILIES:
        make(name, args.out / name)


if __name__ == "__main__":
    main()
