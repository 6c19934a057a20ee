"""What a change makes CI run."""

import pytest
from changed_tests import selected

from tests.house.imports import read_module

SOURCES = {
    "jaxinfer/kv/__init__.py": "",
    "jaxinfer/kv/tree.py": "import heapq",
    "jaxinfer/kv/pool.py": "def late():\n    from jaxinfer.kv import tree",
    "jaxinfer/text/words.py": "import subprocess",
    "kernels/jaxinfer_kernels/check/__main__.py": "from jaxinfer_kernels import rows",
    "kernels/jaxinfer_kernels/rows.py": "",
    "tests/conftest.py": "",
    "tests/docs/test_examples.py": "",
    "tests/kv/pools.py": "from jaxinfer.kv.pool import Pool",
    "tests/kv/test_pool.py": "from tests.kv.pools import pool",
    "tests/kernels/test_rows.py": "from jaxinfer_kernels.rows import Rows",
    "tests/cli/test_serve.py": "import subprocess",
    "tests/text/test_words.py": "import jaxinfer.text.words",
}


def _modules():
    modules = {}
    for path, source in SOURCES.items():
        name = path.removeprefix("kernels/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        modules[path] = read_module(source, name, path.endswith("__init__.py"))
    return modules


POOL, ROWS, SERVE = "tests/kv/test_pool.py", "tests/kernels/test_rows.py", "tests/cli/test_serve.py"
WORDS, EXAMPLES, CHECK = (
    "tests/text/test_words.py",
    "tests/docs/test_examples.py",
    "kernels/jaxinfer_kernels/check/__main__.py",
)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["jaxinfer/kv/tree.py"], {POOL, SERVE}),
        (["jaxinfer/kv/__init__.py"], {POOL, SERVE}),
        (["jaxinfer/kv/table.json"], {POOL, SERVE}),
        (["jaxinfer/text/words.py"], {WORDS, SERVE}),
        (["kernels/jaxinfer_kernels/rows.py"], {ROWS, CHECK, SERVE}),
        (["tests/kv/pools.py"], {POOL}),
        ([WORDS], {WORDS}),
        (["jaxinfer/README.md"], {EXAMPLES}),
        (["jaxinfer/kv/tree.py", "README.md"], {POOL, SERVE, EXAMPLES}),
        (["tests/conftest.py"], {POOL, ROWS, SERVE, WORDS, EXAMPLES, CHECK}),
        (["constraints.txt"], {POOL, ROWS, SERVE, WORDS, EXAMPLES, CHECK}),
        (["LICENSE"], set()),
        ([], set()),
    ],
)
def test_what_depends_on_a_change(changed: list[str], expected: set[str]) -> None:
    assert set(selected(_modules(), changed)) == expected
