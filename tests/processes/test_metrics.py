"""/metrics shows the whole server, whichever API process is asked, and after one of them has died."""

import asyncio
import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.material import REPOSITORY
from tests.processes.serving import Serving, serving
from tests.text.folders import byte_level_folder

COMMON = ("model_name", "engine")
OF_EXPERTS = {"jaxinfer:expert_tokens_total", "jaxinfer:expert_imbalance", "jaxinfer:expert_device_imbalance"}
"""Series that a model without experts does not have."""
_READINGS = ("devices", "calls_behind", "step_skew_seconds", "heartbeat_age_seconds")
OF_HOSTS = {f"jaxinfer:host_{name}" for name in _READINGS}
"""Series that an engine on one host does not have."""
NAME = re.compile(r"\b(?:vllm|jaxinfer):[a-z0-9_]+")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return byte_level_folder(tmp_path / "model")


async def samples_of(server: Serving) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    async with server.session.get(server.url + "/metrics") as response:
        text = await response.text() if response.status == 200 else ""
    return {
        (sample.name, tuple(sorted((name, value) for name, value in sample.labels.items() if name not in COMMON))): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def told_by_all(server: Serving, times: int = 24) -> list[dict[str, float]]:
    """What one scrape after another tells of requests; each is a new connection, which any API process may take.

    One that loads still tells nothing.
    """
    names = {
        "requests": ("vllm:e2e_request_latency_seconds_count", ()),
        "tokens": ("vllm:request_generation_tokens_sum", ()),
        "ended": ("vllm:request_success_total", (("finished_reason", "length"),)),
        "generated": ("vllm:generation_tokens_total", ()),
        "restarts": ("jaxinfer:restarts_total", (("process", "api"),)),
    }
    scrapes = [await samples_of(server) for _ in range(times)]
    return [{short: scrape[key] for short, key in names.items() if key in scrape} for scrape in scrapes]


@pytest.mark.long
async def test_three_api_processes_tell_the_same_sums_also_after_one_was_killed(folder: Path) -> None:
    async with serving(folder, "--api-workers", "3") as server:
        await asyncio.gather(*(server.stream(prompt=[1, 2, i], max_tokens=10) for i in range(60)))
        whole = {"requests": 60, "tokens": 600, "ended": 60, "generated": 600, "restarts": 0}
        assert all(told == whole for told in await told_by_all(server))
        server.child("api", 1).kill()
        async with asyncio.timeout(30):
            whole["restarts"] = 1
            while not all(told == whole for told in await told_by_all(server)):
                await asyncio.sleep(0.05)
        assert (await server.stream(prompt=[1, 2, 0], max_tokens=10)).end == "[DONE]"
        async with asyncio.timeout(10):
            whole |= {"requests": 61, "tokens": 610, "ended": 61, "generated": 610}
            while not all(told == whole for told in await told_by_all(server)):
                await asyncio.sleep(0.05)


@pytest.mark.long
async def test_a_restarted_engine_is_counted_and_its_totals_begin_anew(folder: Path) -> None:
    async with serving(folder) as server:
        await server.stream(prompt=[1, 2, 3], max_tokens=10)
        server.child("engine").kill()
        await server.until("/readyz", 503)
        assert (await samples_of(server))["jaxinfer:engine_ready", ()] == 0
        await server.until("/readyz", 200)
        told = await samples_of(server)
        assert told["jaxinfer:restarts_total", (("process", "engine"),)] == 1
        assert told["vllm:generation_tokens_total", ()] == 0
        assert told["vllm:request_generation_tokens_sum", ()] == 10
        assert told["jaxinfer:engine_ready", ()] == 1


@pytest.mark.long
async def test_every_metric_that_the_configs_and_documents_name_is_told(folder: Path) -> None:
    drafts = json.dumps({"method": "ngram", "num_speculative_tokens": 2})
    async with serving(folder, "--speculative-config", drafts) as server:
        await server.stream(prompt=[1, 2, 3], max_tokens=10)
        told = {name for name, _ in await samples_of(server)}
    dashboard = json.loads((REPOSITORY / "configs/grafana/jaxinfer.json").read_text())
    rules = yaml.safe_load((REPOSITORY / "configs/prometheus/alerts.yaml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expressions in (asked, alerts):
        named = {name for expression in expressions for name in NAME.findall(expression)}
        assert len(named) >= 8
        assert named - told == set()
    document = (REPOSITORY / "jaxinfer/metrics/README.md").read_text()
    present = document[: document.index("## Not there")]
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in told}
    always = set(NAME.findall(present)) - OF_EXPERTS - OF_HOSTS
    assert always == {name for name in families if not name.startswith("process_")}


def test_rules_and_panels_are_whole() -> None:
    dashboard = json.loads((REPOSITORY / "configs/grafana/jaxinfer.json").read_text())
    rules = yaml.safe_load((REPOSITORY / "configs/prometheus/alerts.yaml").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert all(panel["title"] and panel["targets"] for panel in panels)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert {"alert", "expr", "for", "labels", "annotations"} <= set(rule)
            assert rule["annotations"]["summary"]
