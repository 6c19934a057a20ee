"""Memory mappings that programs take: an error in words instead of a segmentation fault."""

import mmap

import pytest

from jaxinfer.errors import JaxinferError
from jaxinfer.runner.platform import mappings
from jaxinfer.runner.programs.compiled import Programs
from tests.runner.tiny import tiny_model, tiny_shapes


def test_they_are_counted() -> None:
    before = mappings.mappings()
    # Of neighbours with the same rights Linux makes one.
    held = [
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | (mmap.PROT_WRITE if odd else 0))
        for odd in [False, True] * 20
    ]
    assert mappings.mappings() >= before + 20
    for one in held:
        one.close()


@pytest.mark.long
def test_an_engine_without_room_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    limit = tmp_path / "max_map_count"
    limit.write_text("100\n")
    monkeypatch.setattr(mappings, "_LIMIT", limit)
    model = tiny_model()
    programs = Programs(model, tiny_shapes(model, max_num_seqs=1, max_num_batched_tokens=8))
    with pytest.raises(JaxinferError, match=r"of the 100 memory mappings .*`sysctl -w vm.max_map_count=800`"):
        programs.make(programs.names)
    limit.unlink()
    mappings.check_mappings()
