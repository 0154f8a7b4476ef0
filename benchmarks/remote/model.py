"""The model: the version of each row, from which all cells of the row follow.

A row has a number; its key is the number × 3. A write gives rows a version, and their cells are
hashes of number, version and column, so that the expected rows of any read are computed from one
array, int32[numbers], which is −1 where there is no row. The array is a file, so that each process
can verify its answers. The columns, and the values in them, are like those of TPC-H's lineitem.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from stores.workload import (
    FLAGS,
    KEY,
    KEY_STEP,
    MODES,
    SCHEMA,
    Aggregate,
    aggregate_of,
    comments,
    content_of,
)

ABSENT = -1
AGGREGATED = ["mode", "quantity", "price"]
SCANNED = ["part", "quantity", "price"]
_PART_ROWS = 1_000_000


class WrongAnswerError(Exception):
    """A store returned something else than the model has."""


class Model:
    """The rows that a table should have; `versions` is changed by `note` alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.versions = np.load(path)

    @classmethod
    def create(cls, path: Path, capacity: int) -> Model:
        """Make the file of a model of no rows, with room for so many numbers."""
        np.save(path, np.full(capacity, ABSENT, np.int32))
        return cls(path)

    def note(self, numbers: np.ndarray, version: int) -> None:
        """Note that the rows of these numbers have been written, and save it."""
        self.versions[numbers] = version
        np.save(self.path, self.versions)

    @property
    def present(self) -> np.ndarray:
        """The numbers of all rows."""
        return np.flatnonzero(self.versions != ABSENT)

    def rows(self, numbers: np.ndarray) -> pa.Table:
        """Return the rows of those numbers that are present."""
        numbers = np.asarray(numbers)
        numbers = numbers[self.versions[numbers] != ABSENT]
        return rows_of(numbers, self.versions[numbers])

    def check(self, found: pa.Table, numbers: np.ndarray, columns: list[str] | None = None) -> None:
        """Raise WrongAnswerError unless these are the rows of the numbers, in any order."""
        names = columns or SCHEMA.names
        if sorted(found.column_names) != sorted(names):
            raise WrongAnswerError(f"columns {found.column_names}, expected {names}")
        schema = pa.schema([SCHEMA.field(name) for name in names])
        expected = self.rows(numbers).select(names)
        digests = content_of(found.select(names).cast(schema)), content_of(expected)
        if digests[0] != digests[1]:
            raise WrongAnswerError(
                f"{digests[0].row_count:,} rows, expected {digests[1].row_count:,}"
                + (" with other values" if digests[0].row_count == digests[1].row_count else "")
            )

    def aggregate(self) -> Aggregate:
        """Return count, sum of quantity and sum of price of all rows, by mode."""
        return aggregate_of(self.rows(self.present).select(AGGREGATED))

    def check_aggregate(self, found: Aggregate) -> None:
        """Raise WrongAnswerError unless all sums agree, up to the rounding of their order."""
        expected = self.aggregate()
        for mode in sorted(found.keys() | expected.keys()):
            pair = found.get(mode, (0, 0.0, 0.0)), expected.get(mode, (0, 0.0, 0.0))
            if not np.allclose(*pair, rtol=1e-9, atol=0):
                raise WrongAnswerError(f"{mode}: {pair[0]}, expected {pair[1]}")


def rows_of(numbers: np.ndarray, versions: np.ndarray | int) -> pa.Table:
    """Return the rows of some numbers in given versions, in this order."""
    versions = np.broadcast_to(np.asarray(versions, np.int32), numbers.shape)
    parts = [
        _rows_of(numbers[begin : begin + _PART_ROWS], versions[begin : begin + _PART_ROWS])
        for begin in range(0, max(len(numbers), 1), _PART_ROWS)
    ]
    return pa.concat_tables(parts)


def _rows_of(numbers: np.ndarray, versions: np.ndarray) -> pa.Table:
    seed = numbers.astype(np.uint64) << np.uint64(24) | versions.astype(np.uint64)

    def below(column: int, bound: int) -> np.ndarray:
        mixed = (seed + np.uint64(column << 58)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        return ((mixed >> np.uint64(1)) % np.uint64(bound)).astype(np.int64)

    def choices(column: int, values: pa.Array) -> pa.Array:
        return values.take(pa.array(below(column, len(values))))

    columns = [
        numbers * KEY_STEP,
        1 + below(1, 199_999),
        1 + below(2, 9_999),
        1.0 + below(3, 50),
        below(4, 10_000_000) / 100,
        below(5, 11) / 100,
        choices(6, pa.array(FLAGS)),
        choices(7, pa.array(MODES)),
        pc.cast(pa.array((8_000 + below(8, 2_600)).astype(np.int32)), pa.date32()),
        choices(9, comments()),
    ]
    arrays = [
        pa.array(column).cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)
    ]
    return pa.table(arrays, schema=SCHEMA)


def numbers_of(rows: pa.Table) -> np.ndarray:
    """Return the numbers of rows."""
    return rows[KEY].to_numpy() // KEY_STEP
