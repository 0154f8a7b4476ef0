"""RowSet: what tablet code asks of a part of a tablet, be it in memory or on disk.

A row id is the row's place in its rowset, for as long as the rowset exists. A key may be a deleted
row of many rowsets; it is live in at most one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.model.values import timestamp_from_micros
from kudulite.rowset.scan_spec import ScanSpec


@dataclass(frozen=True)
class Block:
    """Rows [start, stop) of a rowset in key order, all in one row group."""

    row_group: int
    start: int
    stop: int

    @property
    def row_count(self) -> int:
        """Number of rows, live or not."""
        return self.stop - self.start


@dataclass(frozen=True)
class ScannedRows:
    """Rows that a scan found: the projected columns, and their encoded keys when asked for."""

    batch: pa.RecordBatch
    keys: KeyArray | None


class RowSet(Protocol):
    """A DiskRowSet or a snapshot of a MemRowSet; immutable, any number of threads read."""

    @property
    def key_min(self) -> bytes:
        """The smallest encoded key."""

    @property
    def key_max(self) -> bytes:
        """The largest encoded key."""

    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) may see any row."""

    def live_row_count(self, timestamp: int) -> int:
        """Return the number of rows that a snapshot sees."""

    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the row ids of ascending `keys` live at `timestamp`, else -1."""

    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the row id of `key` if it is live at `timestamp`, else -1."""

    def read_rows(
        self, rowids: np.ndarray, columns: Sequence[Column], timestamp: int
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order, as of `timestamp`."""

    def read_row(self, rowid: int, columns: Sequence[Column], timestamp: int) -> list[object]:
        """Return one row's cells as Python values, as of `timestamp`."""

    def blocks(self, spec: ScanSpec) -> Iterator[Block]:
        """Yield the blocks that may hold a matching row, in key order."""

    def read_block(self, block: Block, spec: ScanSpec) -> ScannedRows | None:
        """Return the matching live rows of a block, in key order, or None when there are none."""


def record_batch(arrays: list[pa.Array], fields: pa.Schema, count: int) -> pa.RecordBatch:
    """Return a batch of `count` rows, also when it has no column."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=fields)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))


def constant(column: Column, count: int) -> pa.Array:
    """What rows that are older than a column show: its read default."""
    return pa.repeat(pa.scalar(column.read_default, column.type.arrow), count)


def cell_value(scalar: pa.Scalar, column: Column) -> object:
    """Return one cell as a Python value in canonical form."""
    if column.type.is_timestamp and scalar.is_valid:
        # Arrow looks its time zone up for every scalar, and has no form for years above 9999.
        return timestamp_from_micros(scalar.value, column.type)
    return scalar.as_py()
