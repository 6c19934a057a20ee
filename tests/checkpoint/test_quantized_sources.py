"""Any part of codes, scales and values is read from just the packed words that hold it."""

import numpy as np
import pytest

from jaxinfer.checkpoint.formats.parts.groups import GroupNumbers
from jaxinfer.checkpoint.formats.parts.packing import Unpacked
from jaxinfer.checkpoint.formats.parts.scales import RowScales, Spread
from jaxinfer.checkpoint.formats.parts.values import Values
from jaxinfer.checkpoint.sources import Source, Tensor, TensorFault

RNG = np.random.default_rng(0)
FILE = {
    "words": RNG.integers(-(2**31), 2**31, (12, 5), dtype=np.int32),
    "bytes": RNG.integers(0, 256, (12, 5), dtype=np.uint8),
    "codes": RNG.integers(-8, 8, (12, 40), dtype=np.int8),
    "scales": RNG.uniform(1, 2, (12, 5)).astype("f2"),
    "row": RNG.uniform(1, 2, 12).astype("f4"),
    "one": np.float32(3),
    "groups": RNG.integers(0, 5, 40, dtype=np.int32),
}
WORDS, BYTES = Tensor("words", (12, 5), ("I32",)), Tensor("bytes", (12, 5), ("U8",))
CODES, SCALES = Tensor("codes", (12, 40), ("I8",)), Tensor("scales", (12, 5))


def code(name: str, row: int, column: int, bits: int, order: tuple[int, ...], axis: int) -> int:
    """One code, by Python's integers."""
    along = (row, column)[axis]
    word, place = divmod(along, len(order))
    number = int(FILE[name][(word, column) if axis == 0 else (row, word)])
    return number >> (bits * order[place]) & (2**bits - 1)


def codes_of(name: str, shape: tuple[int, int], bits: int, order: tuple[int, ...], axis: int) -> np.ndarray:
    rows, columns = map(range, shape)
    return np.array([[code(name, row, column, bits, order, axis) for column in columns] for row in rows])


def scaled(numbers: np.ndarray) -> np.ndarray:
    return FILE["codes"].astype(np.float32) * FILE["scales"].astype(np.float32)[:, numbers]


EIGHT, ODD = tuple(range(8)), (0, 4, 1, 5, 2, 6, 3, 7)
CASES: list[tuple[Source, np.ndarray]] = [
    (Unpacked(WORDS, 1, 40, 4, EIGHT, less=8), codes_of("words", (12, 40), 4, EIGHT, 1) - 8),
    (Unpacked(WORDS, 1, 37, 4, EIGHT), codes_of("words", (12, 37), 4, EIGHT, 1)),
    (Unpacked(WORDS, 0, 96, 4, EIGHT), codes_of("words", (96, 5), 4, EIGHT, 0)),
    (Unpacked(WORDS, 1, 40, 4, ODD), codes_of("words", (12, 40), 4, ODD, 1)),
    (Unpacked(WORDS, 1, 20, 8, (0, 1, 2, 3), less=128), codes_of("words", (12, 20), 8, (0, 1, 2, 3), 1) - 128),
    (Unpacked(WORDS, 1, 40, 4, EIGHT, less=8, plus=1), (codes_of("words", (12, 40), 4, EIGHT, 1) + 1) % 16 - 8),
    (Unpacked(BYTES, 1, 10, 4, (0, 1)), codes_of("bytes", (12, 10), 4, (0, 1), 1)),
    (Spread(SCALES, 0, 34, 3), FILE["scales"].repeat(3, 0)[:34]),
    (Spread(SCALES, 1, 20, 4), FILE["scales"].repeat(4, 1)),
    (RowScales(Tensor("row", (12, 1))), FILE["row"][:, None]),
    (RowScales(Tensor("one", (12, 1))), np.full((12, 1), 3, np.float32)),
    (Values(CODES, SCALES, 8), scaled(np.arange(40) // 8)),
    (Values(CODES, SCALES, 9), scaled(np.arange(40) // 9)),
    (Values(CODES, SCALES, 8, groups=GroupNumbers(Tensor("groups", (40,)), 8)), scaled(FILE["groups"])),
]


def reader(sizes: list[int]):
    def read(name, index):
        part = FILE[name][index]
        sizes.append(part.size)
        return part

    return read


@pytest.mark.parametrize("case", range(len(CASES)))
def test_parts_equal_slices_of_the_whole(case: int) -> None:
    source, full = CASES[case]
    rng = np.random.default_rng(1)
    assert source.shape == full.shape
    for _ in range(20):
        edges = [np.sort(rng.choice(length + 1, 2, replace=False)) for length in full.shape]
        index = tuple(slice(int(low), int(high)) for low, high in edges)
        np.testing.assert_array_equal(source.read(index, reader([])), full[index])
    np.testing.assert_array_equal(source.read((slice(None), slice(None)), reader([])), full)


@pytest.mark.parametrize(
    ("source", "index", "count"),
    [
        (Unpacked(WORDS, 1, 40, 4, EIGHT), (slice(2, 5), slice(9, 15)), 3),
        (Unpacked(WORDS, 1, 40, 4, EIGHT), (slice(2, 5), slice(7, 9)), 6),
        (Unpacked(WORDS, 0, 96, 4, EIGHT), (slice(8, 24), slice(0, 2)), 4),
        (Spread(SCALES, 0, 36, 3), (slice(3, 9), slice(0, 5)), 10),
        (Values(CODES, SCALES, 8), (slice(0, 2), slice(8, 24)), 32 + 4),
    ],
)
def test_no_more_is_read_than_holds_the_part(source: Source, index: tuple[slice, ...], count: int) -> None:
    sizes: list[int] = []
    source.read(index, reader(sizes))
    assert sum(sizes) == count


def test_a_fault_names_the_tensor() -> None:
    with pytest.raises(TensorFault, match="not a finite number") as raised:
        RowScales(Tensor("row", (12, 1))).read((slice(0, 1), slice(None)), lambda name, index: np.full(12, np.nan))
    assert raised.value.tensor == "row"
