"""Random histories on real programs, with NaN in every block and tail that nobody may read."""

from functools import cache

import jax.numpy as jnp
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, run_state_machine_as_test

from jaxinfer.engine.types import GenerateRequest
from jaxinfer.models.loaded import random_model
from jaxinfer.parallel.mesh import make_mesh
from jaxinfer.runner.step.draft_model import with_draft
from jaxinfer.runner.step.stage import StagedModel
from jaxinfer.speculation import Method, Speculation
from tests.draws import history_settings, run_state_machines
from tests.engine.histories import Histories
from tests.engine.outputs import Output
from tests.engine.toy_grammar import ToyConstraints
from tests.models.eagle3_folder import tiny_head
from tests.runner.poisoning import PoisoningRunner
from tests.runner.tiny import VOCABULARY, Judge, make_core, near_model, tiny_model, tiny_shapes
from tests.turns import one_of

EOS = tuple(range(100, 110))
BLOCK = 4


@cache
def runner(windows: tuple[int | None, ...], drafter: Method | None) -> PoisoningRunner:
    """Three rows of 48 tokens at most, and blocks for less than that."""
    model = tiny_model(windows)
    if drafter == "draft_model":
        model = with_draft(model, near_model(model))
    elif drafter == "eagle3":
        model = with_draft(model, tiny_head(model))
    drafting = None if drafter is None else Speculation(3, 1, 2, drafter)
    sizes = {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "blocks": 20}
    made = PoisoningRunner(
        model, tiny_shapes(model, **sizes, block_size=BLOCK, admit_slots=2, copy_blocks=2, drafting=drafting)
    )
    made.warm_up(when="lazy")
    return made


@cache
def pipeline(windows: tuple[int | None, ...], drafter: Method | None) -> PoisoningRunner:
    """The same model, a stage a layer."""
    model, mesh = tiny_model(windows), make_mesh()
    stages = [model.config.stage(layer, layer + 1) for layer in range(model.config.num_layers)]
    parts = tuple(random_model(stage, dtype=jnp.dtype("float32"), mesh=mesh) for stage in stages)
    if drafter == "draft_model":
        parts = (with_draft(parts[0], near_model(model)), *parts[1:])
    drafting = None if drafter is None else Speculation(3, 1, 2, drafter)
    sizes = {"max_num_seqs": 3, "max_num_batched_tokens": 16, "max_model_len": 48, "blocks": 20}
    sizes |= {"block_size": BLOCK, "admit_slots": 2, "copy_blocks": 2, "stages": len(stages)}
    shapes = tiny_shapes(model, **sizes, drafting=drafting, few_sizes=False)
    made = PoisoningRunner(StagedModel(parts), shapes)
    made.warm_up(when="lazy")
    return made


@cache
def judge(windows: tuple[int | None, ...]) -> Judge:
    return Judge(runner(windows, None).stages[0].model, 48)


class RealHistories(Histories):
    """On real programs, whose tokens are those of dense attention over what came before."""

    @initialize(
        windows=st.sampled_from([(None, None), (None, 5)]),
        ahead=st.sampled_from([0, 1, 3]),
        caching=st.booleans(),
        chunk=st.sampled_from([None, 1, 3]),
        drafter=st.sampled_from([None, "ngram", "draft_model", "eagle3"]),
        stages=st.booleans(),
    )
    def start(self, windows, ahead, caching, chunk, drafter, stages) -> None:
        self.windows = windows
        self.flips = 0
        device = pipeline(windows, drafter) if stages and drafter != "eagle3" else runner(windows, drafter)
        asked = {"caching": caching, "eos": EOS, "long_prefill_token_threshold": chunk, "clock": lambda: 0}
        asked["constraints"] = ToyConstraints(VOCABULARY)
        device.core = core = make_core(device, ahead=ahead, **asked)
        self.begin(core, eos=EOS)

    def check_tokens(self, request: GenerateRequest, index: int, output: Output) -> None:
        if output.tokens:
            stops = () if request.sampling.ignore_eos else EOS
            self.flips += len(judge(self.windows).flips(request, index, output, stops))

    def teardown(self) -> None:
        super().teardown()
        if not hasattr(self, "core"):  # no example was drawn
            return
        assert not self.core.stats().core.step_faults
        if self.flips:
            print(f"{self.flips} tokens diverge at near ties")


@pytest.mark.long
@pytest.mark.parametrize("examples", one_of(2, [8, 25]))
def test_random_histories(examples: int) -> None:
    run_state_machine_as_test(RealHistories, settings=history_settings(examples))


@pytest.mark.long
def test_more_random_histories() -> None:
    run_state_machines(RealHistories, 5)
