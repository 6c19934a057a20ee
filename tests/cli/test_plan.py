"""`jaxinfer plan`: the table, JSON, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxinfer.cli import main, plan
from jaxinfer.config import ParallelConfig
from jaxinfer.parallel.asked_mesh import served_mesh
from jaxinfer.plan import compilation
from jaxinfer.plan.compiled import Compiled, Request, label
from jaxinfer.plan.compiling import Bounds, CompileAnswer
from tests.runner.mesh_matrix import MODELS

DRAFTS = ["--fit", "--chip", "v6e", "--speculative-config"]


@pytest.fixture(autouse=True)
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tiny.json` in the current folder."""
    (tmp_path / "tiny.json").write_text(json.dumps(MODELS["experts"]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilation, "obstacle", lambda plan: "nothing compiles here")


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert plan.run(["tiny.json", *arguments, "--no-compile", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_mesh_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, "--mesh", "tp2", "v6e-8", "--chip", "h200", "--batch", "4", "--workload", "20,10")
    assert told["workload"] == {"tokens_in": 20, "tokens_out": 10, "rate": None}
    first, second = told["meshes"]
    assert (first["chip"], first["topology"], first["chips"], first["devices"]) == ("h200", "h200:1x1x2", 2, 2)
    assert (second["chip"], second["topology"]) == ("v6e", "v6e:2x4")
    terms = first["step_seconds"]["terms"]
    assert first["step_seconds"]["seconds"] == pytest.approx(sum(term["seconds"] for term in terms))
    assert {term["name"] for term in terms} == {"weights", "experts", "head", "keys and values", "exchanges"}
    (exchange,) = first["collectives"]
    assert exchange == {"kind": "all-reduce", "bytes": 4 * 128 * 2, "axes": ["tensor"], "count": 5}
    kept = sum(first[name] for name in ("weights_bytes_per_device", "slots_bytes_per_device", "temporary_bytes"))
    assert kept + first["left_bytes"] == first["memory_bytes"]
    found = first["service"]
    assert found["tokens_per_second_per_chip"] == found["tokens_per_second"] / 2
    assert found["cost_per_million_tokens"] is None
    assert all(told["assumptions"])


def test_each_setting_is_heeded(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("--mesh", "tp2", "--chip", "v6e", "--block-size", "16")
    (plain,) = report(capsys, *base)["meshes"]

    def changed(*flags: str) -> dict[str, Any]:
        return report(capsys, *base, *flags)["meshes"][0]

    assert changed("--quantization", "int8")["weights_bytes_per_device"] < plain["weights_bytes_per_device"]
    assert changed("--kv-cache-dtype", "fp8")["kv_bytes_per_token_per_device"] < plain["kv_bytes_per_token_per_device"]
    assert changed("--block-size", "64")["page_tokens"] == 64
    assert changed("--gpu-memory-utilization", "0.5")["memory_bytes"] < plain["memory_bytes"]
    assert changed("--context", "32")["slots_bytes_per_device"] < plain["slots_bytes_per_device"]
    assert changed("--max-num-seqs", "7")["slots_bytes_per_device"] < plain["slots_bytes_per_device"]
    assert changed("--max-num-batched-tokens", "9000")["temporary_bytes"] > plain["temporary_bytes"]
    assert changed("--batch", "64")["step_seconds"]["seconds"] > plain["step_seconds"]["seconds"]
    (priced,) = report(capsys, *base, "--price", "3.6")["meshes"]
    rate = plain["service"]["tokens_per_second"] / 4  # the smallest slice that has two chips
    assert priced["service"]["cost_per_million_tokens"] == pytest.approx(3.6 / 3600 / rate * 10**6)
    whole = ("--sweep", "4", "--chip", "v6e", "--batch", "4", "--expert-imbalance")
    even, busy = ({each["mesh"]: each for each in report(capsys, *whole, by)["meshes"]} for by in ("1", "3"))
    assert busy["ep4"]["service"]["itl"] > even["ep4"]["service"]["itl"]
    assert busy["tp4"] == even["tp4"]


def test_the_table_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    meshes = ("single", "data2-tp4", "v6e-8", "v7x-8", "h200-8", "pp2-tp4", "h200-16", "v6e-16-pp2")
    assert plan.run(["tiny.json", "--mesh", *meshes, "--chip", "v5e"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    assert [line.split()[0] for line in lines[3 : 4 + len(meshes)]] == ["mesh", *meshes]


def test_what_is_best_and_what_does_not_fit_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--chip", "h100", "--price", "2", "--explain", "--workload", "60,20"]
    assert plan.run(["tiny.json", "--mesh", "single", "tp8", *flags]) == 0
    out = capsys.readouterr().out
    # So small a model gains nothing from eight devices.
    assert "Least time between tokens: single; most tokens a chip: single; cheapest: single." in out
    assert "5 x all-reduce of 8.0K along tensor" in out
    assert re.search(r"memory: 69\.[01]G = ", out)
    Path("large.json").write_text(json.dumps(MODELS["dense"] | {"vocab_size": 4_000_000, "hidden_size": 16384}))
    assert plan.run(["large.json", "--mesh", "single", "tp8", *flags]) == 0
    out = capsys.readouterr().out
    # Two tables of 122 GiB, of which a device would have more than 69 in int8, or over two.
    assert re.search(r"^single lacks [\d.]+G a device; fits with tensor=4\.$", out, re.MULTILINE)
    assert "Least time" not in out
    assert plan.run(["tiny.json", "--mesh", "single", "--chip", "h100", "--itl", "0.0001"]) == 0
    assert "single does not serve even one such request within the limits." in capsys.readouterr().out


def test_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the table and three pictures, and loads nothing."""
    hostile = tmp_path / "<script>.json"
    hostile.write_text((tmp_path / "tiny.json").read_text())
    arguments = [hostile.name, "--mesh", "tp2", "single", "--chip", "v6e", "--batch", "6", "--workload", "20,10"]
    assert plan.run([*arguments, "--json", "--html", "page.html"]) == 0
    first, second = json.loads(capsys.readouterr().out)["meshes"]
    written = (tmp_path / "page.html").read_text()
    assert "<script" not in written
    assert "&lt;script&gt;.json" in written
    assert not re.findall(r"(?:src|href)=|url\(|@import", written)
    assert written.count("<svg") == written.count("</svg>") == 3
    assert plan.run(arguments) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("tp2"))
    assert all(f"<td>{cell}</td>" in written for cell in row.split())
    batches = [1, 2, 4, 6, 8, 16, 32, 64, 128, 256]
    assert [one["batch"] for one in first["curve"]] == [one["batch"] for one in second["curve"]] == batches
    assert first["curve"][3]["tokens_per_second"] == first["service"]["tokens_per_second"]


def test_a_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its row is of the slowest stage; stages and what crosses are told."""
    Path("four.json").write_text(json.dumps(MODELS["experts"] | {"num_hidden_layers": 4}))
    flags = ["four.json", "--mesh", "tp2", "pp2", "--chip", "h200", "--batch", "8", "--workload", "20,10"]
    flags += ["--no-compile", "--pipeline-layers", "0-2,3"]
    assert plan.run([*flags, "--json", "--html", "page.html"]) == 0
    told = json.loads(capsys.readouterr().out)
    plain, staged = told["meshes"]
    assert plain["pipeline"] is None
    found, (first, last) = staged["pipeline"], staged["pipeline"]["stages"]
    assert [first["layers"], last["layers"]] == ["0-2", "3-3"]
    assert first["seconds"] == pytest.approx(sum(term["seconds"] for term in first["terms"]))
    assert staged["step_seconds"]["seconds"] == max(first["seconds"], last["seconds"])
    onward, back = found["hand_overs"]
    assert onward["bytes"] == 4 * 128 * 2  # of half of the requests
    # So small a step is over before what it hands over is there.
    through = first["seconds"] + last["seconds"] + onward["seconds"] + back["seconds"]
    assert found["round_seconds"] == pytest.approx(through) == pytest.approx(staged["service"]["itl"], rel=0.05)
    assert found["bubble"] == pytest.approx(1 - (first["seconds"] + last["seconds"]) / found["round_seconds"])
    assert staged["left_bytes"] == first["left_bytes"] < last["left_bytes"]
    assert "a pipeline spreads prompts" in told["assumptions"][-1]
    written = (tmp_path / "page.html").read_text()
    assert "pp2: a step takes" in written
    assert all(f"pp2 {one['layers']}: weights" in written for one in (first, last))
    assert plan.run([*flags, "--explain"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"pp2: a step takes [\d.]+ ms in layers 0-2, [\d.]+ ms in layers 3-3; [\d.]+ ms a token, of", out)
    assert "1.0K handed over in 0.01 ms (links), " in out
    assert "pp2, a decode step of one device of layers 0-2:" in out
    assert "tp2, a decode step of one device:" in out


def test_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("draft.json").write_text(json.dumps(MODELS["dense"] | {"num_hidden_layers": 1}))
    flags = ["--mesh", "single", "--chip", "h200", "--batch", "6", "--workload", "20,10"]
    asked = ["--speculative-config", '{"model": "draft.json", "num_speculative_tokens": 2}']
    (plain,), (told,) = (report(capsys, *flags, *more)["meshes"] for more in ([], [*asked, "--draft-acceptance", "1"]))
    assert plain["drafts"] is None
    found = told["drafts"]
    weights, slots = (
        told[f"{name}_bytes_per_device"] - plain[f"{name}_bytes_per_device"] for name in ("weights", "slots")
    )
    assert weights == found["weights_bytes_per_device"]
    assert slots >= 4 * 96 * 256  # a history of 96 tokens of 256 slots
    assert [one["batch"] for one in found["by_batch"]] == [1, 2, 4, 6]
    last = found["by_batch"][-1]
    assert (last["drafts"], last["tokens"]) == (2, 3.0)
    assert last["seconds"] == pytest.approx(sum(term["seconds"] for term in last["terms"]))
    assert last["speedup"] == pytest.approx(3 * last["plain_seconds"] / last["seconds"])
    assert last["speedup"] > 1
    assert told["service"]["itl"] < plain["service"]["itl"]
    assert told["service"]["ttft"] > plain["service"]["ttft"]  # both models read prompts
    (none,) = report(capsys, *flags, *asked, "--draft-acceptance", "0")["meshes"]
    assert {(one["drafts"], one["speedup"]) for one in none["drafts"]["by_batch"]} == {(0, 1.0)}
    assert plan.run(["tiny.json", *flags, *asked, "--draft-acceptance", "1", "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    takes = f"with 2 drafts a row it takes {1e3 * last['seconds']:.2f} ms and gives a row 3.00 tokens"
    assert f"The table's step has none; {takes}." in " ".join(" ".join(lines).split())
    of_step = lines[lines.index(f"single, a decode step of one device; {takes}:") + 1 :]
    names = [term["name"] for term in last["terms"]]
    assert [line.partition(" ms  ")[2].partition(":")[0] for line in of_step[: len(names)]] == names
    assert plan.run(["tiny.json", *flags, *asked, "--html", "page.html"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    pays = r"do not pay for 1 to 4 requests; pay for 6 requests \(x "
    assert re.search(rf"single: drafts by draft\.json, 2 a row, {pays}", out)
    assert "of drafts that come after kept ones 70 % are kept" in out
    assert "drafts by draft.json" in (tmp_path / "page.html").read_text()
    assert main(["plan", "tiny.json", *flags, "--speculative-config", '{"method": "ngram"}']) == 0
    assert "drafts by n-grams, 4 a row, pay for" in " ".join(capsys.readouterr().out.split())


def test_the_best_mesh_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, "--sweep", "8", "--chip", "v6e", "--batch", "8", "--emit", "best.yaml")
    best = max(told["meshes"], key=lambda mesh: mesh["service"]["tokens_per_second_per_chip"])
    (again,) = report(capsys, "--mesh", "./best.yaml", "--batch", "8")["meshes"]
    assert served_mesh(ParallelConfig(mesh="./best.yaml")) is not None
    assert again["topology"] == "v6e:2x4"
    for name in ("axes", "weights_bytes_per_device", "step_seconds", "service"):
        assert again[name] == best[name]


def test_meshes_that_no_engine_serves_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Weights over `data` are planned alone."""
    Path("wide.yaml").write_text("axes: {data: 2}\nrules: {mlp: data}\n")
    asked = ("--mesh", "wide.yaml", "--chip", "v6e", "--batch", "8")
    told = report(capsys, "--mesh", "wide.yaml", "single", *asked[2:], "--emit", "best.yaml")
    assert [bool(mesh["refused"]) for mesh in told["meshes"]] == [True, False]
    (again,) = report(capsys, "--mesh", "./best.yaml", "--chip", "v6e")["meshes"]
    assert again["axes"] == "one device"
    assert main(["plan", "tiny.json", *asked, "--emit", "best.yaml"]) == 2
    assert "emit: no mesh here serves the requests" in capsys.readouterr().err


def test_no_mesh_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["plan", "tiny.json", "--mesh", "tp2", "--chip", "v6e"]
    assert main([*common, "--emit", "best.json"]) == 2
    assert "emit: best.json must end in .yaml" in capsys.readouterr().err
    assert main([*common, "--emit", "best.yaml", "--itl", "0.0001"]) == 2
    assert "emit: no mesh here serves the requests within the limits" in capsys.readouterr().err
    assert not (tmp_path / "best.yaml").exists()


def test_a_page_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "tiny.json", "--mesh", "tp2", "--chip", "v6e", "--html", "no/such/page.html"]) == 2
    assert (
        "html: no/such/page.html cannot be written: its folder is not there, or not this user's"
        in capsys.readouterr().err
    )


def test_what_a_sweep_leaves_out_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.run(["tiny.json", "--chip", "v6e", "--sweep", "8", "--max-num-seqs", "4", "--batch", "4"]) == 0
    assert "Left out: data8-tp1 (max_num_seqs: 4 must be at least 8" in capsys.readouterr().out


def test_meshes_are_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    told = report(capsys, "--chip", "v6e", "--sweep", "4", "--fit")
    names = ["data4-tp1", "data2-tp2", "data2-ep2", "tp4", "ep4", "tp1"]
    assert [mesh["mesh"] for mesh in told["meshes"]] == names
    assert [mesh["devices"] for mesh in told["meshes"]] == [4] * 5 + [1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--mesh", "tp2"], "mesh tp2 names no chips; give --chip with one of a100, b200, h100, h200, v5e"),
        (["--mesh", "tp2", "--chip", "h300"], "'h300' is no chip that is known; there are a100"),
        (["--mesh", "tp3", "--chip", "h200"], "'tp3' is no mesh; give a file that ends in .yaml, or one of data2-tp4"),
        (["--mesh", "tp2", "--chip", "h200", "--pipeline-layers", "0,1"], "0,1: no mesh here has stages; give one"),
        (["--mesh", "pp2", "--chip", "h200", "--pipeline-layers", "0"], "0: 1 range, and there are 2 stages"),
        (["--mesh", "pp2", "--chip", "h200", "--pipeline-layers", "all"], "'all': ranges such as 0-14,15-31"),
        (["--mesh", "auto", "--chip", "h200"], "auto is chosen by an engine"),
        (
            ["--mesh", "tp2", "--chip", "h200", "--batch", "0"],
            "--batch: must be at least 1, and less than 1,000,000",
        ),
        (["--mesh", "tp2", "--chip", "h200", "--workload", "10"], "--workload: '10' must be IN,OUT"),
        (["--mesh", "tp2", "--chip", "h200", "--workload", "10,-1"], "--workload: '10,-1' must be IN,OUT"),
        (["--mesh", "tp2", "--chip", "h200", "--workload", "10,1,0"], "--workload: '10,1,0' must be IN,OUT"),
        (["--mesh", "tp2", "--chip", "h200", "--workload", "10,1,inf"], "--workload: '10,1,inf' must be IN,OUT"),
        (["--mesh", "tp2", "--chip", "h200", "--workload", "10,1,2,3"], "--workload: '10,1,2,3' must be IN,OUT"),
        (["--mesh", "tp2", "--chip", "h200", "--expert-imbalance", "0.5"], "--expert-imbalance: must be at least 1"),
        (["--mesh", "tp2", "--chip", "h200", "--expert-imbalance", "nan"], "--expert-imbalance: must be at least 1"),
        (["--mesh", "tp2", "--chip", "h200", "--workload", "90,7"], "90,7: 97 tokens are more than the context, 96"),
        (["--mesh", "tp2", "--chip", "h200", "--context", "1"], "--context: must be at least 2, not 1"),
        (["--mesh", "tp2", "--chip", "h200", "--context", "1000000000"], "--context: 1000000000 is more than"),
        (["--mesh", "tp2", "--chip", "h200", "--quantization", "int3"], "--quantization"),
        (["--mesh"], "--mesh: needs a value"),
        (["--sweep", "0", "--chip", "v6e"], "--sweep: must be from 1 to 1024, not 0"),
        (["--sweep", "4"], "names no chips; give --chip with one of"),
        (["--fit", "--chip", "v6e", "--itl", "0"], "--itl: must be above 0, and less than 1,000,000, not 0"),
        (["--fit", "--chip", "v6e", "--price", "inf"], "--price: must be above 0, and less than"),
        ([*DRAFTS, "{}"], "--speculative-config: method must be ngram, draft_model or eagle3, not null"),
        ([*DRAFTS, '{"model": "none.json"}'], "none.json: there is no such file"),
        ([*DRAFTS, '{"model": "tiny.json", "method": "eagle3"}'], "architectures must be LlamaForCausalLMEagle3 or"),
        ([*DRAFTS, '{"method": "ngram"}', "--draft-acceptance", "1.5"], "--draft-acceptance: must be from 0 to 1, not"),
        (["--fit", "--chip", "v6e", "--draft-acceptance", "0.5"], "means nothing without --speculative-config"),
    ],
)
def test_wrong_input_is_told(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "tiny.json", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_a_model_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none"), "--mesh", "v6e-8"]) == 2
    assert "none" in capsys.readouterr().err
    assert main(["plan", "none.json", "--mesh", "v6e-8"]) == 2
    assert "none.json: there is no such file" in capsys.readouterr().err


def test_a_mesh_that_no_engine_runs_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    rules = "rules: {mlp: [data, tensor]}"
    for name, text in (("mine", "axes: {tensor: 16}"), ("other", f"axes: {{data: 2, tensor: 8}}\n{rules}")):
        Path(f"{name}.yaml").write_text(f"topology: v6e:4x4\n{text}\n")
    Path("wide.json").write_text(json.dumps(MODELS["dense"] | {"num_attention_heads": 16, "num_key_value_heads": 16}))
    assert plan.run(["wide.json", "--mesh", "mine.yaml", "other.yaml"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mine is not served" not in out
    assert "other is not served yet: rules.mlp: data splits requests; weights over it are not supported yet." in out
    assert " mine v6e:4x4 " in out


def test_a_table_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the best mesh; more rows, and more tokens behind them, take no less time."""
    flags = ["--mesh", "single", "tp2", "--chip", "v6e", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    assert plan.run(["tiny.json", *flags, "--device-model", "steps.json"]) == 0
    told = json.loads(Path("steps.json").read_text())
    assert told["mesh"] == "single"  # so small a model gains nothing from two
    assert [rows for rows, before, _ in told["decode"] if before == 0] == [1, 2, 4, 8]
    assert [tokens for tokens, before, _ in told["mixed"] if before == 0] == [16, 32, 64]
    assert told["stages"] == 1
    for steps in (told["decode"], told["mixed"]):
        seconds = {(size, before): taken for size, before, taken in steps}
        for (size, before), taken in seconds.items():
            assert taken > 0
            assert seconds.get((2 * size, before), taken) >= taken
            assert seconds.get((size, 0), 0) <= taken
    assert main(["plan", "tiny.json", *flags, "--device-model", "no/such.json"]) == 2


def test_what_compilers_tell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is theirs where they were asked; the meshes that are looked for are not compiled."""
    asked: list[str] = []

    def compiled(request: Request, bounds: Bounds, told: Callable[[CompileAnswer], None]) -> list[CompileAnswer]:
        asked.append(str(request.mesh))
        for name in request.names:
            problem = "took more than 900 s" if name[0] == "admit" else ""
            told(
                CompileAnswer(
                    name, None if problem else Compiled(label(name), 2.0, 3 << 30, 1, 1, 1, 64 << 20, ()), problem
                )
            )
        return [
            CompileAnswer(name, Compiled(label(name), 2.0, 3 << 30, 1, 1, 1, 64 << 20, ()))
            if name[0] != "admit"
            else CompileAnswer(name, None, "took more than 900 s")
            for name in request.names
        ]

    monkeypatch.setattr(compilation, "obstacle", lambda plan: None if plan.name == "tp2" else "nothing compiles here")
    monkeypatch.setattr(compilation, "compile_programs", compiled)
    flags = ["tiny.json", "--mesh", "tp2", "tp4", "--sweep", "2", "--chip", "v6e"]
    assert plan.run([*flags, "--json"]) == 0
    out, err = capsys.readouterr()
    first, second, *swept = json.loads(out)["meshes"]
    assert len(asked) == 1
    assert first["temporary_bytes"] == 64 << 20 != first["estimated_temporary_bytes"]
    assert [one["program"].split()[0] for one in first["compiled"]["programs"]] == ["decode", "mixed", "sample"]
    assert first["compiled"]["problems"] == {"admit": "took more than 900 s"}
    assert first["compiled"]["differs"]
    assert second["compiled"]["obstacle"] == "nothing compiles here"
    assert [mesh["compiled"] for mesh in swept] == [None] * len(swept)
    assert "tp2: decode 32 compiled in 2.0 s" in err
    assert "tp2: admit was not compiled: took more than 900 s" in err
    assert plan.run(flags) == 0
    text = capsys.readouterr().out
    assert "tp2: programs compiled in 6 s, in at most 3.0G; what they take differs" in text
    assert "tp2: temporaries take 64.0M, from shapes alone" in text
    assert "  decode 32: arguments take 1 bytes" in text
    assert "From shapes alone: tp4 (nothing compiles here)." in text
    assert max(map(len, text.splitlines())) <= 120


def test_requests_a_second(tmp_path, capsys, monkeypatch) -> None:
    """What no mesh answers is told; of those that answer, the one with fewest chips is emitted."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.json").write_text(json.dumps(MODELS["dense"]))
    common = ["plan", "tiny.json", "--mesh", "single", "tp2", "--chip", "h200", "--no-compile", "--batch", "8"]
    assert main([*common, "--workload", "20,10,1234567.5", "--html", "page.html"]) == 0
    told = capsys.readouterr().out
    assert "of 20 tokens in and 10 out, 1,234,567.5 of them a second" in told
    assert "1,234,567.5 of them a second" in Path("page.html").read_text()
    assert "such requests a second; more come." in told
    assert main([*common, "--workload", "20,10,2", "--json"]) == 0
    for mesh in json.loads(capsys.readouterr().out)["meshes"]:
        assert mesh["service"]["keeps_up"]
        assert mesh["service"]["tokens_per_second"] == 20
        assert mesh["service"]["requests_per_second"] == 2
