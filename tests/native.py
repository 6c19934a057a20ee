"""The native kernels, which not every machine can build."""

import pytest
from jaxinfer_kernels import unavailable

_REASON = unavailable("native")
needs_native = pytest.mark.skipif(_REASON is not None, reason=_REASON or "they are here")
