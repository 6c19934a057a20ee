"""Bounds are never below what others have published, and the page has them as they are reckoned."""

from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig, ModelConfig
from jaxinfer.folder_files import read_object
from jaxinfer.model_config.registry import parse_config
from jaxinfer.parallel.mesh_config import MeshConfig
from jaxinfer.plan.chip import read_chip
from jaxinfer.plan.estimate import plan_mesh
from jaxinfer.plan.service import Workload, service
from tests.material import REPOSITORY, material

PAGE = REPOSITORY / "jaxinfer" / "plan" / "README.md"
PUBLISHED = (
    ("Qwen3-8B", "qwen3-8b", "v7x", 8, 128, 8521, 14.1),
    ("Llama-3.3-70B", "llama3.1-70b", "v7x", 8, 128, 3610, 30.8),
    ("Qwen3-30B-A3B", "qwen3-30b-a3b", "v7x", 8, 128, 6179, 18.9),
    ("Qwen3-8B", "qwen3-8b", "v6e", 4, 64, 5297, 11.1),
)
"""sglang-jax's serving figures: output tokens a second, and milliseconds between two tokens, of 1,024 tokens in and as
many out."""


@pytest.mark.parametrize(("model", "file", "chip", "tensor", "batch", "rate", "itl"), PUBLISHED)
def test_a_bound_is_above_what_others_reach(
    model: str, file: str, chip: str, tensor: int, batch: int, rate: int, itl: float
) -> None:
    config: Path = material("configs") / f"{file}.shapes.json"
    asked = EngineConfig(load=ModelConfig(max_model_len=8192))
    plan = plan_mesh(asked, parse_config(read_object(config)), MeshConfig({"tensor": tensor}), "it", read_chip(chip))
    found = service(plan, Workload(1024, 1024), batch)
    assert found.batch == batch
    assert rate < found.tokens_per_second < 5 * rate
    assert found.itl < itl / 1e3
    row = f"| {model} | 4 {chip}, tp {tensor} | {batch} | {rate:,} | {found.tokens_per_second:,.0f} | {itl} ms"
    assert f"{row} | {1e3 * found.itl:.1f} ms |" in PAGE.read_text()
