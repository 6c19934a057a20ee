"""An EAGLE-3 head over several devices, in a process of its own with CPU devices: tokens are those of one device."""

import pytest

from tests.drafts.eagle3_over_devices import compare_tokens
from tests.runner.devices import run_on_devices


@pytest.mark.long
def test_a_head_over_devices() -> None:
    run_on_devices(compare_tokens, 2)
