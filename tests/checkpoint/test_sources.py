"""Any part of a fused weight is read from just the tensors' parts that hold it."""

import numpy as np
import pytest

from jaxinfer.checkpoint.sources import Source, Tensor, read_weight

FILE = {name: np.random.default_rng(i).standard_normal((24, 10)) for i, name in enumerate("abcd")}


def reader(read_bytes: list[int]):
    def read(name, index):
        part = FILE[name][index]
        read_bytes.append(part.size)
        return part

    return read


def whole(source: Source) -> np.ndarray:
    return np.concatenate([FILE[t.name].reshape(t.viewed) for t in source.tensors], axis=source.axis)


VIEWS = [((4, 3, 2), (10,)), ((24,), (5, 2)), ((1, 24), (10,)), ((24,), (10,)), ((2, 1, 12), (10, 1))]


@pytest.mark.parametrize("view", VIEWS)
def test_parts_equal_slices_of_the_whole(view):
    rng = np.random.default_rng(0)
    for axis in range(sum(map(len, view))):
        source = Source((Tensor("a", view), Tensor("b", view)), axis)
        full = whole(source)
        assert source.shape == full.shape
        for _ in range(20):
            edges = [np.sort(rng.choice(length + 1, 2, replace=False)) for length in full.shape]
            index = tuple(slice(int(low), int(high)) for low, high in edges)
            np.testing.assert_array_equal(read_weight([source], False, index, reader([])), full[index])
        everything = (slice(None),) * full.ndim
        np.testing.assert_array_equal(read_weight([source], False, everything, reader([])), full)


def test_stacked():
    sources = [Source((Tensor(name, ((24,), (10,))),)) for name in "abcd"]
    part = read_weight(sources, True, (slice(1, 3), slice(5, 9), slice(None)), reader([]))
    np.testing.assert_array_equal(part, np.stack([FILE["b"], FILE["c"]])[:, 5:9])


def test_a_shard_reads_no_more_than_itself():
    read_bytes: list[int] = []
    source = Source(tuple(Tensor(name, ((4, 3, 2), (10,))) for name in "ab"), axis=1)
    part = read_weight([source], False, (slice(1, 2), slice(None), slice(None), slice(0, 5)), reader(read_bytes))
    assert sum(read_bytes) == part.size
