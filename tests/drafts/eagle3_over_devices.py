"""An EAGLE-3 head over two devices beside none on one."""

from typing import Any

from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.speculation import Speculation
from tests.drafts.drafting import WITH_ONE_TOKEN
from tests.models.eagle3_folder import tiny_head
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes


def run(mesh: MeshConfig, head: bool) -> tuple[dict[tuple[str, int], list[int]], Any]:
    target = tiny_model(mesh=make_mesh(mesh))
    model = with_draft(target, tiny_head(target)) if head else target
    drafting = Speculation(3, method="eagle3") if head else None
    sizes: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "shards": mesh.data}
    runner = JaxRunner(model, tiny_shapes(model, **sizes, drafting=drafting))
    runner.warm_up(when="lazy")
    core = make_core(runner, clock=lambda: 0)
    return {key: output.tokens for key, output in drive(core, WITH_ONE_TOKEN).items()}, core.stats()


def compare_tokens() -> None:
    plain, _ = run(ONE_DEVICE, False)
    for axis in ("tensor", "data"):
        found, stats = run(MeshConfig({axis: 2}), True)
        assert plain == found, (axis, plain, found)
        assert stats.drafts.draft_tokens > 100, axis
