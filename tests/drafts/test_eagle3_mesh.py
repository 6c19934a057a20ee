"""An EAGLE-3 head over several devices, in a process of its own with CPU devices: tokens are those of one device."""

import pytest

from tests.runner.devices import run_on_devices

_PROGRAM = """
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.parallel.mesh_config import ONE_DEVICE, MeshConfig
from jaxinfer.runner.draft_model import with_draft
from jaxinfer.runner.jax_runner import JaxRunner
from jaxinfer.speculation import Speculation
from tests.models.eagle3_folder import tiny_head
from tests.drafts.test_eagle3_drafter import REQUESTS
from tests.runner.tiny import drive, make_core, tiny_model, tiny_shapes

def run(mesh, head):
    target = tiny_model(mesh=make_mesh(mesh))
    model = with_draft(target, tiny_head(target)) if head else target
    drafting = Speculation(3, method="eagle3") if head else None
    sizes = dict(max_num_seqs=4, max_num_batched_tokens=16, shards=mesh.data, drafting=drafting)
    runner = JaxRunner(model, tiny_shapes(model, **sizes))
    runner.warm_up(lazy=True)
    core = make_core(runner, clock=lambda: 0)
    return {key: output.tokens for key, output in drive(core, REQUESTS).items()}, core.stats()

plain, _ = run(ONE_DEVICE, False)
for axis in ("tensor", "data"):
    found, stats = run(MeshConfig({axis: 2}), True)
    assert plain == found, (axis, plain, found)
    assert stats.drafts.draft_tokens > 100, axis
"""


@pytest.mark.long
def test_a_head_over_devices() -> None:
    run_on_devices(_PROGRAM, 2)
