"""The description of the HTTP API names everything that the server understands, and nothing else."""

import re

import pytest

from jaxinfer.serving.bodies.chat_schema import ChatBody
from jaxinfer.serving.bodies.messages_schema import MessagesBody
from jaxinfer.serving.bodies.responses_schema import ResponsesBody
from jaxinfer.serving.bodies.schema import CompletionBody, GenerateBody, NotSupported, WithoutEffect
from jaxinfer.serving.config import ServerConfig
from tests.material import REPOSITORY

TEXT = (REPOSITORY / "jaxinfer" / "server" / "README.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([a-z_]+)`", TEXT))
UNSUPPORTED = set(NotSupported.__struct_fields__)


@pytest.mark.parametrize("body", [CompletionBody, ChatBody, MessagesBody, ResponsesBody])
def test_every_parameter_is_described(body: type) -> None:
    assert set(body.__struct_fields__) - UNSUPPORTED <= NAMED  # pyright: ignore[reportAttributeAccessIssue]


def test_the_list_of_what_has_no_effect_is_whole() -> None:
    listed = re.search(r"\*\*Accepted, without effect\*\*: (.*)\.", TEXT)
    assert listed is not None
    names = set(re.findall(r"`(\w+)`", listed.group(1)))
    assert names == set(WithoutEffect.__struct_fields__) - UNSUPPORTED


def test_parameters_in_the_tables_exist() -> None:
    rows = re.findall(r"^\| (`[^|]+) \|", TEXT.split("## Unknown fields")[0], re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert names <= {*GenerateBody.__struct_fields__, *CompletionBody.__struct_fields__}
    assert len(names) > 25


def test_flags_exist() -> None:
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]+)", TEXT)}
    elsewhere = {
        "fair_share", "max_waiting", "max_num_seqs", "scheduling_policy", "seed", "speculative_config", "step_timeout",
        "chat_template", "default_chat_template_kwargs",
    }  # fmt: skip
    assert flags - elsewhere <= set(ServerConfig.__dataclass_fields__)
