"""The check: what it reads from HLO and ptxas, how it reports, and that it finds broken kernels."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jaxinfer_kernels import KVLayout
from jaxinfer_kernels.check.cases import Case, Lowering, kept_pages, kept_weights
from jaxinfer_kernels.check.command import collect
from jaxinfer_kernels.check.hlo import moves, scoped_memory
from jaxinfer_kernels.check.kernels import kernel_cases
from jaxinfer_kernels.check.ptx import GpuKernels, KernelReport, parse_report
from jaxinfer_kernels.check.results import Result, gpu_problems
from jaxinfer_kernels.check.schedule import Schedule, read_schedules, read_units
from jaxinfer_kernels.check.table import render
from jaxinfer_kernels.check.targets import FOLDER, TargetError, read_target, target_names

from tests.kernels.broken_kernels import BROKEN
from tests.material import REPOSITORY
from tests.turns import one_of

TPU = importlib.util.find_spec("libtpu") is not None
GPU = importlib.util.find_spec("jax_cuda13_plugin") is not None
needs_tpu_compiler = pytest.mark.skipif(not TPU, reason="libtpu, of the extra compile-tpu, is not installed")

HLO = """HloModule jit_step, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }

%fused_copy (param_0.1: bf16[4,512]) -> bf16[512,4] {
  %param_0.1 = bf16[4,512]{1,0:T(8,128)(2,1)} parameter(0)
  %transpose.1 = bf16[512,4]{1,0:T(8,128)(2,1)} transpose(%param_0.1), dimensions={1,0}
  ROOT %bitcast.7 = bf16[512,4]{1,0:T(8,128)(2,1)} bitcast(%transpose.1)
}

%fused_within (param_0.7: bf16[4,512]) -> bf16[4,512] {
  %param_0.7 = bf16[4,512]{1,0} parameter(0)
  ROOT %copy.7 = bf16[4,512]{0,1} copy(%param_0.7)
}

%fused_product (param_0.2: bf16[4,512], param_1.2: bf16[4,512]) -> bf16[4] {
  %param_0.2 = bf16[4,512]{1,0} parameter(0)
  %copy.9 = bf16[4,512]{0,1} copy(%param_0.2)
  %param_1.2 = bf16[4,512]{1,0} parameter(1)
  %fusion.9 = bf16[4,512]{0,1} fusion(%param_1.2), kind=kLoop, calls=%fused_within
  ROOT %reduce.1 = bf16[4]{0} reduce(%copy.9, %fusion.9), dimensions={1}, to_apply=%add
}

%fused_pair (param_0.3: bf16[4,512]) -> (bf16[4,512], f32[]) {
  %param_0.3 = bf16[4,512]{1,0} parameter(0)
  %copy.11 = bf16[4,512]{0,1} copy(%param_0.3)
  %constant.1 = f32[] constant(0)
  ROOT %tuple.3 = (bf16[4,512]{0,1}, f32[]) tuple(%copy.11, %constant.1)
}

ENTRY %main.9 (pages: bf16[4,512], weight: s4[8,1024]) -> bf16[4,512] {
  %pages = bf16[4,512]{1,0:T(8,128)(2,1)} parameter(0)
  %weight = s4[8,1024]{1,0} parameter(1)
  %copy-start.2 = (bf16[4,512]{1,0:T(8,128)(2,1)S(1)}, bf16[4,512]{1,0}, u32[]{:S(2)}) copy-start(%pages)
  %copy-done.2 = bf16[4,512]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start.2)
  %copy-start.3 = (bf16[4,512]{1,0:T(8,128)(2,1)}, bf16[4,512]{1,0}, u32[]{:S(2)}) copy-start(%pages)
  %copy.65 = s4[8,1024]{0,1} copy(%weight), metadata={scheduling_name="copy.65"}
  %copy.66 = s32[] copy(%constant_8436_0)
  %fusion.1 = bf16[512,4]{1,0} fusion(%pages), kind=kLoop, calls=%fused_copy
  %fusion.2 = bf16[4]{0} fusion(%pages, %pages), kind=kOutput, calls=%fused_product
  %fusion.3 = (bf16[4,512]{0,1}, f32[]) fusion(%pages), kind=kLoop, calls=%fused_pair
  ROOT %custom-call.1 = bf16[4,512]{1,0} custom-call(%pages), custom_call_target="tpu_custom_call", \
backend_config={"custom_call_config":{"body":"TUzv"},"scoped_memory_configs":[{"memory_space":"1","offset":"0",\
"size":"15663104"}],"used_scoped_memory_configs":[{"memory_space":"1","offset":"0","size":"4849664"}]}
}
"""

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'loop_fusion' for 'sm_90a'
ptxas info    : Function properties for loop_fusion
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 16384 bytes smem
ptxas info    : Compiling entry function 'attention' for 'sm_90a'
ptxas info    : Function properties for attention
    64 bytes stack frame, 48 bytes spill stores, 52 bytes spill loads
ptxas info    : Used 255 registers
"""


def test_moves_in_recorded_hlo():
    """Pages and the int4 weight take 4096 bytes each; on-chip copies and those inside a fusion do not count."""
    found = [(move.name, move.operation) for move in moves(HLO, {4096})]
    assert sorted(found) == [
        ("copy-start.3", "copy-start"),
        ("copy.11", "copy"),
        ("copy.65", "copy"),
        ("transpose.1", "transpose"),
    ]
    assert moves(HLO, {4095}) == []


def test_scoped_memory_is_what_is_used():
    assert scoped_memory(HLO) == {1: 4849664}


def write_rows(pages: jax.Array, rows: jax.Array) -> jax.Array:
    return pages.at[1, 0, 5].set(rows)


@pytest.mark.parametrize("donated", [True, False])
def test_a_compiled_program_that_copies_is_found(donated: bool):
    shape = (2, 2, 64, 16, 2, 64)
    arguments = jax.ShapeDtypeStruct(shape, jnp.float32), jax.ShapeDtypeStruct(shape[3:], jnp.float32)
    compiled = jax.jit(write_rows, donate_argnums=(0,) if donated else ()).lower(*arguments).compile()
    found = moves(str(compiled.as_text()), {kept.size for kept in kept_pages(shape, jnp.float32, KVLayout.TOKENS)})
    assert len(found) == (0 if donated else 1)


def test_kept_pages_are_the_whole_a_layer_and_one_side():
    sizes = [kept.size for kept in kept_pages((4, 2, 512, 64, 8, 128), jnp.bfloat16, KVLayout.TOKENS)]
    assert sizes == [1 << 29, 1 << 27, 1 << 26]
    assert [kept.size for kept in kept_weights([("norm", (4096,), jnp.bfloat16), ("up", (4096, 1024), jnp.int4)])] == [
        1 << 21
    ]


def test_ptxas_reports():
    assert parse_report(PTXAS) == [KernelReport("loop_fusion", 32, 0, 16384), KernelReport("attention", 255, 100, 0)]


@pytest.fixture
def gpu_kernels(tmp_path: Path) -> GpuKernels:
    """With a ptxas that reads registers from the PTX."""
    ptxas = tmp_path / "ptxas"
    ptxas.write_text(
        "#!/bin/sh\n"
        "for file; do :; done\n"
        "echo \"ptxas info    : Compiling entry function '$(basename $file .ptx)' for 'sm_90a'\" >&2\n"
        'echo "ptxas info    : Used $(sed -n s/registers//p $file) registers, 1 bytes smem" >&2\n'
    )
    ptxas.chmod(0o755)
    return GpuKernels(ptxas)


def dump(folder: Path, lowered: dict[str, tuple[str, int]], compiled: dict[str, int]) -> Path:
    """What compilers write of a program. lowered: text and shared memory by name; compiled: registers by name."""
    folder.mkdir()
    for name, (text, shared) in lowered.items():
        (folder / f"{name}.after_layout_inference.txt").write_text(f'module dump_basename = "{name}" {text}')
        (folder / f"{name}.resources.txt").write_text(f"Resources(smem_scratch_bytes={shared}, tmem=0)")
    for name, registers in compiled.items():
        (folder / f"{name}.ptx").write_text(f".target sm_90a\n.entry\n.reqntid 128\nregisters{registers}\n")
    return folder


def taken(kernels: GpuKernels, folder: Path) -> list[tuple[int, int]]:
    """Registers and shared memory."""
    return [(kernel.registers, kernel.shared) for kernel in kernels.reports(folder)]


def test_kernels_that_an_earlier_program_had_are_known(gpu_kernels: GpuKernels, tmp_path: Path):
    """From jax 0.12 they are compiled once, and numbers of lowered and compiled kernels differ afterwards."""
    first = dump(tmp_path / "first", {"write_0": ("w", 64), "attend_1": ("a", 512)}, {"write_0": 18, "attend_1": 184})
    assert taken(gpu_kernels, first) == [(184, 513), (18, 65)]
    second = {"write_2": ("w", 64), "attend_9": ("b", 1024), "attend_10": ("a", 512), "attend_11": ("c", 256)}
    again = dump(tmp_path / "second", second, {"attend_2": 200, "attend_3": 90, "module_7.fusion": 32})
    assert taken(gpu_kernels, again) == [(32, 1), (200, 1025), (184, 513), (90, 257), (18, 65)]


def test_every_kernel_is_compiled_anew_by_jax_011(gpu_kernels: GpuKernels, tmp_path: Path):
    for number in (0, 1):
        kernels = {f"write_{number}": ("w", 64)}
        assert taken(gpu_kernels, dump(tmp_path / str(number), kernels, {f"write_{number}": 18 + number})) == [
            (18 + number, 65)
        ]


def test_a_kernel_without_ptx_is_an_error(gpu_kernels: GpuKernels, tmp_path: Path):
    with pytest.raises(RuntimeError, match="1 kernels write are compiled; the PTX of 0 is there"):
        gpu_kernels.reports(dump(tmp_path / "first", {"write_0": ("w", 64)}, {}))


UNITS = """== CAPACTIY:
MXU, XLU, VALU, VPOP, EUP, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL, SALU
    4     3     4     2     1     3     3     1     1     2
== UTILIZATION:
0 0 0 0 0 3 2 0 0 1
4 0 1 0 0 0 0 1 1 0
0 0 0 0 0 0 0 1 0 0
0 0 0 0 0 0 0 1 1 2
"""
ALLOCATIONS = """entry:
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0x4, fixed_abs, tag = 'core index']
  #allocation2 [shape = 'u32[144,128]{1,0:T(1,128)}', space=vmem, size = 0x12000, scoped, tag = 'internal scratch']
  #allocation3 [shape = 's32[2,1,128]{2,1,0:T(1,128)}', space=smem, size = 0x400, scoped, tag = 'scratch operand']
  #allocation5 [shape = 'u8[512]{0}', space=smem, size = 0x200, scoped, tag = 'prefetched SMEM operand 1']
"""


def test_schedules_of_pallas_kernels_are_read(tmp_path: Path):
    for number, name in enumerate(("custom-call.1", "fusion.7")):
        (tmp_path / f"17{number}-{name}-01-final_hlo-static-per-bundle-utilization.txt").write_text(UNITS)
        (tmp_path / f"17{number}-{name}-00-pre-finalize-registers-and-allocations.txt").write_text(ALLOCATIONS)
    (found,) = read_schedules(tmp_path, HLO)
    assert found == Schedule("custom-call.1", bundles=4, stores=2, loads=2, smem=0x600)
    assert found.spilled == 4 * 4096
    assert found.problem == "custom-call.1 spills: 2 of its 4 bundles store a register"
    assert not found._replace(bundles=10).problem
    assert read_schedules(tmp_path, "") == []


def test_what_is_wrong_with_gpu_kernels_is_told():
    case = Case("attention", "small", lambda devices: Lowering(None), wgmma="attend")
    sound = KernelReport("attend_short", 184, 0, 1024, 128, wgmma=True)
    assert gpu_problems(case, [sound, KernelReport("merge", 40, 0, 0)]) == ()
    assert gpu_problems(case, [sound, sound._replace(wgmma=False)]) == ("attend_short has no wgmma",)
    assert gpu_problems(case, [sound._replace(spilled=8)]) == ("attend_short spills 8 bytes",)
    written_by_xla = sound._replace(name="input_reduce_fusion_2", spilled=64)
    assert gpu_problems(case, [sound, written_by_xla]) == ()
    assert gpu_problems(case, [sound, written_by_xla._replace(spilled=72)]) == (
        "input_reduce_fusion_2 spills 72 bytes",
    )
    assert gpu_problems(case, [KernelReport("merge", 40, 0, 0)]) == ("no kernel has attend in its name",)


def test_a_compiler_that_tells_nothing_is_an_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"no schedule of custom-call\.1"):
        read_schedules(tmp_path, HLO)
    with pytest.raises(ValueError, match="another form"):
        read_units("MXU: 4")


def test_a_process_that_dies_leaves_no_case_unmentioned():
    done = Result("v6e", "one", "small", "ok", seconds=1.0)._asdict()
    messages = [{"planned": [["one", "small"], ["two", "small"], ["three", "small"]]}, {"result": done}]
    results = collect(messages, "v6e", -6, "Check failed: dims")
    assert [(result.program, result.state) for result in results] == [
        ("one", "ok"),
        ("two", "failed"),
        ("three", "failed"),
    ]
    assert "status -6: Check failed: dims" in results[1].problems[0]
    assert "not reached" in results[2].problems[0]


def test_a_process_that_says_nothing_fails():
    assert [result.state for result in collect([], "v6e", 1, "")] == ["failed"]
    assert collect([{"planned": []}, {"done": True}], "v6e", 0, "") == []


@pytest.mark.parametrize("name", target_names(FOLDER))
def test_the_table_fits_a_terminal(name: str):
    cases = kernel_cases(read_target(FOLDER, name), True)
    assert len({(case.program, case.shape) for case in cases}) == len(cases)
    sizes = {"seconds": 100.25, "temporaries": 1000 << 20, "aliased": 1000 << 30, "smem": 1023, "registers": 255}
    rows: list[Any] = [Result(name, case.program, case.shape, "failed", (), **sizes) for case in cases]
    lines = render(rows).splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[-1] == f"0 ok, {len(cases)} failed, 0 not compiled"


def test_what_is_not_compiled_is_told():
    row = Result("v5e", "decode 256", "Llama-3.1-70B", "not compiled", ("weights take 131 GiB",))
    assert "v5e  Llama-3.1-70B not compiled: weights take 131 GiB" in render([row])


def test_committed_targets_are_those_of_the_script(tmp_path: Path):
    subprocess.run([sys.executable, "scripts/make_targets.py", "--out", str(tmp_path)], check=True, cwd=REPOSITORY)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text() for file in FOLDER.iterdir()}


@pytest.mark.parametrize(
    ("name", "chip", "cores"), [("v5e", "5E", 1), ("v5p", "5P", 2), ("v6e", "6E", 1), ("v7x", "7X", 1)]
)
def test_figures_are_those_that_jax_has(name: str, chip: str, cores: int):
    info = pytest.importorskip("jax._src.tpu_info", reason="this JAX keeps its figures elsewhere")
    target, known = read_target(FOLDER, name), None
    chip = info.ChipVersion["TPU_" + (chip if chip.startswith("7") else f"V{chip}")]
    known = info.get_tpu_info_for_chip(chip, cores)
    assert target.vmem_bytes == known.vmem_capacity_bytes
    assert target.smem_bytes == known.smem_capacity_bytes
    for ours, theirs in (
        (target.hbm_bytes, known.hbm_capacity_bytes),
        (target.hbm_bytes_per_second, known.mem_bw_bytes_per_second),
        (target.bf16_ops_per_second, known.bf16_ops_per_second),
        (target.int8_ops_per_second, known.int8_ops_per_second),
        (target.fp8_ops_per_second, known.fp8_ops_per_second),
    ):
        assert ours == theirs * cores


def test_a_wrong_target_is_told(tmp_path: Path):
    with pytest.raises(TargetError, match=r"'v9' is unknown; .* has h200, v5e, v5p, v6e, v7x"):
        read_target(FOLDER, "v9")
    with pytest.raises(TargetError, match=r"has no targets: .* --folder configs/targets names them"):
        target_names(tmp_path)
    (tmp_path / "v9.yaml").write_text("platform: tpu\nhbm: 5\n")
    with pytest.raises(TargetError, match="unknown hbm; known are"):
        read_target(tmp_path, "v9")
    (tmp_path / "v9.yaml").write_text("platform: tpu\n")
    with pytest.raises(TargetError, match=r"missing .* 'topology'"):
        read_target(tmp_path, "v9")


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = [str(REPOSITORY / "kernels"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    # For a target the settings of the tests on a CPU do not hold.
    environment = os.environ | {"PYTHONPATH": ":".join(filter(None, paths)), "XLA_FLAGS": ""} | variables
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=800, check=False)


def test_a_name_that_no_case_has_is_told_with_the_names_that_there_are():
    done = run("jaxinfer_kernels.check", "--targets", "v6e,h200", "--only", "kv_write")
    assert done.returncode == 1
    assert "no case contains 'kv_write'; the programs are\n" in done.stderr
    assert "  write_kv mosaic_gpu\n" in done.stderr
    assert "  ragged_paged_attention mosaic_tpu, decode\n" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("version", [(0, 10, 2), (0, 11, 2)])
def test_a_missing_gpu_compiler_is_told_with_what_mosaic_gpu_needs(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(jax, "__version_info__", version)
    monkeypatch.setattr("jax.experimental.topologies.get_topology_desc", lambda **_: 1 // 0)
    with pytest.raises(TargetError, match="the extra compile-gpu gives what compiles for h200") as told:
        read_target(FOLDER, "h200").devices()
    assert ("Python 3.12" in str(told.value)) == (version < (0, 11))


@pytest.mark.skipif(TPU, reason="libtpu is installed")
def test_a_missing_compiler_fails_and_is_named():
    done = run("jaxinfer_kernels.check", "--targets", "v6e", "--only", "copy_pages")
    assert done.returncode == 1
    assert "the extra compile-tpu gives what compiles for v6e" in done.stdout


@needs_tpu_compiler
def test_kernels_compile_for_a_tpu(tmp_path: Path):
    file = tmp_path / "results.json"
    done = run("jaxinfer_kernels.check", "--targets", "v6e", "--only", "quantized_matmul", "--json", str(file))
    assert done.returncode == 0, done.stdout
    results = json.loads(file.read_text())
    assert results
    assert {result["state"] for result in results} == {"ok"}
    assert all(0 < result["vmem"] < read_target(FOLDER, "v6e").vmem_bytes for result in results)


@pytest.mark.skipif(not GPU, reason="the compilers of the extra compile-gpu are not installed")
def test_a_record_holds_for_a_checkout_elsewhere(tmp_path: Path):
    """Mosaic GPU writes the paths of sources into its modules, which would make other programs of them."""
    elsewhere = tmp_path / "elsewhere" / "jaxinfer_kernels"
    shutil.copytree(REPOSITORY / "kernels" / "jaxinfer_kernels", elsewhere)
    only = ("--targets", "h200", "--only", "write_kv mosaic_gpu", "--folder", str(FOLDER))
    record, file = tmp_path / "record.json", tmp_path / "results.json"
    done = run("jaxinfer_kernels.check", *only, "--record", str(record), "--update-record")
    assert done.returncode == 0, done.stdout
    arguments = ("--record", str(record), "--json", str(file))
    done = run("jaxinfer_kernels.check", *only, *arguments, PYTHONPATH=str(elsewhere.parent))
    assert done.returncode == 0, done.stdout
    assert all(result["recorded"] for result in json.loads(file.read_text()))


@needs_tpu_compiler
@pytest.mark.parametrize("name", one_of(3, BROKEN))
def test_a_broken_kernel_fails_the_check(name: str, tmp_path: Path):
    file = tmp_path / "results.json"
    check = partial(run, "tests.kernels.broken_kernels", "--targets", "v6e", "--json", str(file))
    done = check("--only", f"{name} once")
    assert done.returncode == (1 if BROKEN[name].problem else 0), done.stdout
    (result,) = json.loads(file.read_text())
    assert BROKEN[name].problem in " ".join(result["problems"])
