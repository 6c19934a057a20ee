"""What devices send each other, read from HLO, and the step programs of broken meshes."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from jaxinfer_kernels.check.collectives import Collective, Exchange, exchange_problems, read_collectives, summary

from tests.material import REPOSITORY
from tests.turns import one_of

needs_tpu_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu, of the extra compile-tpu, is not installed"
)

HLO = """HloModule jit_step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%a, %b)
}

%body.3 (p: (s32[], bf16[16,64])) -> (s32[], bf16[16,64]) {
  %all-reduce.9 = bf16[16,64]{1,0:T(8,128)(2,1)S(1)} all-reduce(%x), channel_id=3, to_apply=%add
}

ENTRY %main (p0: bf16[16,64]) -> bf16[16,64] {
  %all-reduce-start.1 = ((bf16[16,64]{1,0}), bf16[16,64]{1,0}) all-reduce-start(%p0), channel_id=1, to_apply=%add
  %all-reduce-done.1 = bf16[16,64]{1,0} all-reduce-done(%all-reduce-start.1)
  %all-gather.2 = (s32[16,160]{0,1}, f32[16,160]{0,1}) all-gather(%ids, %values), channel_id=2, dimensions={1}
  ROOT %all-reduce.3 = f32[16]{0} all-reduce(%q), channel_id=4, to_apply=%add
}
"""
HIDDEN = Collective("all-reduce", "bf16[16,64]", 2048)


def test_collectives_of_a_module():
    """An asynchronous one counts once, where it is done; one of two arrays twice."""
    assert read_collectives(HLO) == [
        HIDDEN,
        HIDDEN,
        Collective("all-gather", "s32[16,160]", 10240),
        Collective("all-gather", "f32[16,160]", 10240),
        Collective("all-reduce", "f32[16]", 64),
    ]


LOOPS = """HloModule jit_step

%told (p: (s32[], f32[8])) -> pred[] {
  ROOT %lt.1 = pred[] fusion(%p), kind=kLoop, calls=%compared
}

%counted (q: (s32[], f32[8])) -> pred[] {
  %constant.5 = s32[]{:T(128)} constant(4), backend_config={"flag_configs":[]}
  %i = s32[]{:T(128)} get-tuple-element(%q), index=0
  ROOT %lt.2 = pred[]{:T(512)} compare(%i, %constant.5), direction=LT
}

%asked (r: (pred[], f32[8])) -> pred[] {
  ROOT %goes = pred[] get-tuple-element(%r), index=0
}

%fused (p: f32[8]) -> f32[8] {
  ROOT %all-reduce.1 = f32[8]{0} all-reduce(%x), to_apply=%add
}

%elsewhere (p: f32[64]) -> f32[64] {
  ROOT %all-reduce.4 = f32[64]{0} all-reduce(%p), to_apply=%add
}

%inner (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %call-start.1 = ((f32[64]), f32[64], s32[]) call-start(%y), async_execution_thread="sparsecore", to_apply=%elsewhere
  %fusion.1 = f32[8]{0} fusion(%x), kind=kCustom, calls=%fused
  %conditional.1 = f32[128]{0} conditional(%i, %a, %b), branch_computations={%nothing, %some}
  %conditional.2 = f32[256]{0} conditional(%q, %a, %b), true_computation=%more, false_computation=%nothing
}

%nothing (p: f32[128]) -> f32[128] {
  ROOT %p = f32[128]{0} parameter(0)
}

%some (p: f32[128]) -> f32[128] {
  ROOT %all-reduce.5 = f32[128]{0} all-reduce(%p), to_apply=%add
}

%more (p: f32[256]) -> f32[256] {
  ROOT %all-reduce.6 = f32[256]{0} all-reduce(%p), to_apply=%add
}

%compare_fusion (i: s32[], n: s32[]) -> pred[] {
  ROOT %lt.3 = pred[] compare(%i, %n), direction=LT
}

%counted_in_a_fusion (s: (s32[], f32[8])) -> pred[] {
  %constant.6 = s32[] constant(5)
  %i = s32[] get-tuple-element(%s), index=0
  ROOT %fusion.2 = pred[] fusion(%i, %constant.6), kind=kLoop, calls=%compare_fusion
}

%five (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %all-reduce.7 = f32[512]{0} all-reduce(%x), to_apply=%add
}

%outer (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %all-reduce.2 = f32[16]{0} all-reduce(%x), to_apply=%add
  %while.1 = (s32[], f32[8]) while(%t), condition=%counted, body=%inner, metadata={op_name="scan"}
}

%unknown (r: (pred[], f32[8])) -> (pred[], f32[8]) {
  %all-reduce.3 = f32[32]{0} all-reduce(%x), to_apply=%add
}

ENTRY %main (p0: f32[8]) -> f32[8] {
  %while.2 = (s32[], f32[8]) while(%u), condition=%told, body=%outer, backend_config={"known_trip_count":{"n":"3"}}
  %while.4 = (s32[], f32[8]) while(%w), condition=%counted_in_a_fusion, body=%five
  ROOT %while.3 = (pred[], f32[8]) while(%v), condition=%asked, body=%unknown
}
"""


def test_collectives_of_loops_count_for_each_pass():
    """Passes that XLA tells, those that a condition counts, itself or in a fusion, and a loop that ends when it will;
    in fusions, calls and branches, too."""
    assert Counter(one.array for one in read_collectives(LOOPS)) == {
        **{"f32[8]": 12, "f32[64]": 12, "f32[128]": 12, "f32[256]": 12},
        **{"f32[16]": 3, "f32[32]": 1, "f32[512]": 5},
    }


def test_what_is_not_expected():
    found = read_collectives(HLO)
    assert exchange_problems(Exchange(((str(HIDDEN), 2),), 10240), found) == []
    assert exchange_problems(Exchange(((str(HIDDEN), 3),), 10240), found) == [
        "all-reduce bf16[16,64]: 2 times, 3 expected"
    ]
    assert exchange_problems(Exchange(((str(HIDDEN), 2),), 64), found) == [
        "all-gather s32[16,160]: 1 times, 10.0K each; 64 is allowed",
        "all-gather f32[16,160]: 1 times, 10.0K each; 64 is allowed",
    ]
    assert "nothing else is expected" in exchange_problems(Exchange(), found)[0]


def test_many_collectives_are_summed_by_kind():
    found = read_collectives(HLO)
    assert summary(found) == (
        "2 all-reduce bf16[16,64], 2.0K each",
        "1 all-gather s32[16,160], 10.0K each",
        "1 all-gather f32[16,160], 10.0K each",
        "1 all-reduce f32[16], 64 each",
    )
    assert summary([*found, Collective("all-reduce", "f32[8]", 32)]) == (
        "4 all-reduce, 4.1K in all, 2.0K at most",
        "2 all-gather, 20.0K in all, 10.0K at most",
    )


WRONG_RULE = "axes: {tensor: 2}\nrules: {mlp: null}\n"


@needs_tpu_compiler
@pytest.mark.parametrize(
    ("fault", "program", "problem"),
    one_of(
        5,
        [
            ("rule", "decode 16", "all-reduce bf16[16,4096]: 3 times, 5 expected"),
            ("none", "decode 16", ""),
            ("gather", "sample 256", "all-gather f32[256,128256]: 1 times"),
            ("undonated", "decode 16", "are not updated in place"),
            ("widened", "decode 16", "hands over float32[16, 4096]; bfloat16[16, 4096] is expected"),
        ],
    ),
)
def test_broken_meshes_fail(fault: str, program: str, problem: str, tmp_path: Path):
    mesh = {"gather": "tp8", "widened": "pp2"}.get(fault, "tp2")
    if fault == "rule":
        (tmp_path / "tp2.yaml").write_text(WRONG_RULE)
        mesh = str(tmp_path / "tp2.yaml")
    asked = ["--mesh", mesh, "--targets", "v6e", "--only", f"{program} Llama", "--fresh"]
    paths = [str(REPOSITORY / name) for name in ("", "kernels", "scripts")]
    environment = os.environ | {"PYTHONPATH": ":".join(paths), "XLA_FLAGS": "", "JAXINFER_FAULT": fault}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.broken_meshes", *asked],
        env=environment,
        text=True,
        capture_output=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == (1 if problem else 0), done.stdout
    assert problem in done.stdout
