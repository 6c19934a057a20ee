"""Pools of pages that hold no request at all are refused at start."""

import pytest

from jaxinfer.build import _fit_context
from jaxinfer.config import EngineConfig
from jaxinfer.errors import ParameterError
from tests.engine.small import small_shapes


@pytest.mark.parametrize(("pages", "size"), [(1, 4), (2, 1)])
def test_pages_that_hold_no_request_are_refused(pages: int, size: int) -> None:
    with pytest.raises(ParameterError, match="num_blocks"):
        _fit_context(EngineConfig(), small_shapes(pages, page_size=size))
