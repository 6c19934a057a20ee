"""Any part of a weight is read from just the tensors' parts that hold it."""

import numpy as np
import pytest

from jaxinfer.checkpoint.sources import Cut, Joined, Sorted, Source, Split, Stacked, Tensor, Turned

FILE = {name: np.random.default_rng(i).standard_normal((24, 10)) for i, name in enumerate("abcd")}
A, B, C, D = (Tensor(name, (24, 10)) for name in "abcd")
_A, _B, _C, _D = (FILE[name] for name in "abcd")


def reader(sizes: list[int]):
    def read(name, index):
        part = FILE[name][index]
        sizes.append(part.size)
        return part

    return read


VIEWS = [((4, 3, 2), (10,)), ((24,), (5, 2)), ((1, 24), (10,)), ((24,), (10,)), ((2, 1, 12), (10, 1))]
ORDER = (*range(0, 10, 2), *range(1, 10, 2))
CASES: list[tuple[Source, np.ndarray]] = [
    (A, _A),
    *((Split(A, view), _A.reshape(sum(view, ()))) for view in VIEWS),
    *(
        (Joined((Split(A, view), Split(B, view)), axis), np.concatenate([_A.reshape(shape), _B.reshape(shape)], axis))
        for view in VIEWS
        for shape in [sum(view, ())]
        for axis in range(len(shape))
    ),
    (Cut(A, 0, 3, 20), _A[3:20]),
    (Cut(A, 1, 4, 9), _A[:, 4:9]),
    (Split(Cut(A, 0, 8, 20), ((3, 4), (10,))), _A[8:20].reshape(3, 4, 10)),
    (Turned(A, (1, 0)), _A.T),
    (Turned(Split(A, ((3, 4, 2), (10,))), (0, 2, 1, 3)), _A.reshape(3, 4, 2, 10).transpose(0, 2, 1, 3)),
    (Turned(Split(A, ((24,), (5, 2))), (2, 0, 1)), _A.reshape(24, 5, 2).transpose(2, 0, 1)),
    (Sorted(A, 1, ORDER), _A[:, ORDER]),
    (Sorted(Split(A, ((4, 6), (10,))), 2, ORDER), _A.reshape(4, 6, 10)[..., ORDER]),
    (Stacked([A, B, C, D]), np.stack([_A, _B, _C, _D])),
    (Stacked([Turned(A, (1, 0)), Turned(D, (1, 0))]), np.stack([_A.T, _D.T])),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_parts_equal_slices_of_the_whole(case: int):
    source, full = CASES[case]
    rng = np.random.default_rng(0)
    assert source.shape == full.shape
    for _ in range(20):
        edges = [np.sort(rng.choice(length + 1, 2, replace=False)) for length in full.shape]
        index = tuple(slice(int(low), int(high)) for low, high in edges)
        np.testing.assert_array_equal(source.read(index, reader([])), full[index])
    np.testing.assert_array_equal(source.read((slice(None),) * full.ndim, reader([])), full)


def test_a_source_names_its_tensors():
    source = Stacked([Joined((Split(A, ((4, 6), (10,))), Split(B, ((4, 6), (10,)))), 1), Split(C, ((4, 6), (10,)))])
    assert list(source.tensors) == [A, B, C]


@pytest.mark.parametrize(
    ("source", "index"),
    [
        (
            Joined(tuple(Split(t, ((4, 3, 2), (10,))) for t in (A, B)), 1),
            (slice(1, 2), slice(None), slice(None), slice(0, 5)),
        ),
        (Cut(A, 0, 8, 20), (slice(2, 4), slice(None))),
        (Turned(A, (1, 0)), (slice(2, 4), slice(5, 9))),
        (Stacked([A, B]), (slice(1, 2), slice(3, 9), slice(None))),
    ],
)
def test_a_shard_reads_no_more_than_itself(source: Source, index: tuple[slice, ...]):
    sizes: list[int] = []
    part = source.read(index, reader(sizes))
    assert sum(sizes) == part.size
