"""What an index shows of the package: a page whose links hold there, and extras that exist."""

import re
import tomllib

from tests.material import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PAGE = (REPOSITORY / PROJECT["readme"]).read_text()


def test_links_do_not_lead_into_the_repository():
    assert [link for link in re.findall(r"\]\(([^)]*)\)", PAGE) if not link.startswith("https://")] == []


def test_extras_that_it_names_exist():
    named = re.findall(r"jaxinfer\[(\w+)\]", PAGE)
    assert {"cuda13", "cuda12", "tpu"} <= set(named) <= set(PROJECT["optional-dependencies"])


def test_every_python_that_ci_tries_is_a_classifier():
    script = (REPOSITORY / ".ci" / "run").read_text()
    (versions,) = re.findall(r"for version in ([\d. ]+); do", script)
    for version in versions.split():
        assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
