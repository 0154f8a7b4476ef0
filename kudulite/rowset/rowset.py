"""RowSet: the interface of a part of a tablet, in memory or on disk.

A row id is the row's position in its rowset, as long as the rowset exists. A key may be a deleted
row of many rowsets; it is live in at most one.

**Threads**: any.

**Source**: Kudu rowset.h.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import Keeps, always
from kudulite.delta.delta_applier import DeltaApplier
from kudulite.delta.delta_source import DeltaSource
from kudulite.delta.scatter import select
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column
from kudulite.model.values import python_values, timestamp_from_micros
from kudulite.rowset.scan_spec import ScanSpec, View


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
    """Rows of a scan: the projected columns, and the encoded keys if the scan asks for them."""

    batch: pa.RecordBatch
    keys: KeyArray | None

    def cut(self, start: int, stop: int) -> ScannedRows:
        """Return rows start..stop without a copy."""
        keys = None if self.keys is None else self.keys.slice(start, stop)
        return ScannedRows(self.batch.slice(start, stop - start), keys)


class RowSet(ABC):
    """A DiskRowSet or a snapshot of a MemRowSet; immutable, any number of threads read."""

    key_min: bytes
    """The smallest encoded key."""

    key_max: bytes
    """The largest encoded key."""

    lifetime: tuple[int, int | None]
    """When all rows together were inserted and deleted; 0 and None if the rows differ."""

    @abstractmethod
    def is_visible(self, timestamp: int) -> bool:
        """Whether a snapshot at `timestamp` (inclusive) may see any row."""

    @abstractmethod
    def live_row_count(self, timestamp: int) -> int:
        """Return the number of rows that a snapshot sees, from deltas alone."""

    # -- lookups by key

    def is_key_index_open(self) -> bool:
        """Whether lookups need not wait for a file with the keys; in memory there is none."""
        return True

    def key_loads(self, timestamp: int) -> Iterable[Callable[[], object]]:
        """Return what opens all that the lookup of a key may need; in memory nothing."""
        return ()

    @abstractmethod
    def find(self, keys: KeyArray, timestamp: int) -> np.ndarray:
        """Return int64[n]: the row ids of ascending `keys` live at `timestamp`, else -1."""

    @abstractmethod
    def find_one(self, key: bytes, width: int | None, timestamp: int) -> int:
        """Return the row id of `key` if it is live at `timestamp`, else -1."""

    @abstractmethod
    def read_rows(
        self,
        rowids: np.ndarray,
        columns: Sequence[Column],
        timestamp: int,
        *,
        keeps: Keeps = always,
    ) -> list[pa.Array]:
        """Return each column's values of int64[n] row ids in any order, as of `timestamp`.

        `keeps` says whether so many bytes of a decoded row group may stay in the cache.
        """

    @abstractmethod
    def read_row(self, rowid: int, columns: Sequence[Column], timestamp: int) -> list[object]:
        """Return one row's cells as Python values, as of `timestamp`."""

    # -- blocks

    @abstractmethod
    def blocks(self, spec: ScanSpec) -> Iterator[Block]:
        """Yield the blocks that may hold a matching row, in key order."""

    @abstractmethod
    def rowids_of(self, block: Block) -> np.ndarray:
        """Return int64[n]: the row ids of a block's rows, in key order."""

    @abstractmethod
    def places_in(self, block: Block, rowids: np.ndarray) -> tuple[np.ndarray, np.ndarray | slice]:
        """Return int64[m] positions of a block's rows, and their places in ascending `rowids`."""

    @abstractmethod
    def keys_of(self, block: Block, positions: np.ndarray | None) -> KeyArray:
        """Return the keys of a block's rows at int64[m] `positions`; None is all of them."""

    @abstractmethod
    def live_in(self, block: Block, timestamp: int) -> np.ndarray | None:
        """Return bool[n]: which of a block's rows a snapshot sees; None when it sees all."""

    @abstractmethod
    def read_images(
        self, block: Block, columns: Sequence[Column], views: Sequence[View]
    ) -> list[list[pa.Array]]:
        """Return, for each view, the columns' values of the block's rows at int64[m] positions.

        Base data is read once for all views.
        """

    def read_block(
        self, block: Block, spec: ScanSpec, wanted: np.ndarray | None = None
    ) -> ScannedRows | None:
        """Return the matching live rows of a block, in key order, or None when there are none.

        `wanted` is int64[m]: the ascending positions of the rows to choose from. None is all.
        """
        live = self.live_in(block, spec.timestamp)
        if live is not None and not live.any():
            return None
        known: dict[str, pa.Array] = {}
        if spec.row_predicates.columns:
            known = self._read_columns(block, spec, spec.row_predicates.columns, None)
            matches = spec.row_predicates.evaluate(pa.RecordBatch.from_pydict(known))
            live = matches if live is None else live & matches
        selected = wanted
        if live is not None and not live.all():
            selected = np.flatnonzero(live) if wanted is None else wanted[live[wanted]]
        if selected is not None and not len(selected):
            return None
        columns = {name: select(known[name], selected) for name in spec.names if name in known}
        others = [name for name in spec.names if name not in known]
        columns |= self._read_columns(block, spec, others, selected)
        count = block.row_count if selected is None else len(selected)
        batch = record_batch([columns[name] for name in spec.names], spec.fields, count)
        return ScannedRows(batch, self.keys_of(block, selected) if spec.with_keys else None)

    def _read_columns(
        self, block: Block, spec: ScanSpec, names: Sequence[str], selected: np.ndarray | None
    ) -> dict[str, pa.Array]:
        """Read columns of a block as of the snapshot, at the `selected` positions."""
        columns = [spec.schema.column(name) for name in names]
        view = self.applier(spec.timestamp), selected
        return dict(zip(names, self.read_images(block, columns, [view])[0], strict=True))

    # -- changes, for diff scans and the history of a row

    @abstractmethod
    def applier(self, timestamp: int) -> DeltaApplier:
        """Return the applier of the deltas that a snapshot at `timestamp` sees."""

    @abstractmethod
    def delta_sources(self) -> tuple[Sequence[DeltaSource], Sequence[DeltaSource]]:
        """Return the sources of UNDO, newest first, and of REDO, oldest first, not opened yet."""

    @abstractmethod
    def are_live(self, rowids: np.ndarray, timestamp: int, applier: DeltaApplier) -> np.ndarray:
        """Return bool[n]: which of int64[n] row ids are live at `timestamp`, that of `applier`."""


def record_batch(arrays: list[pa.Array], fields: pa.Schema, count: int) -> pa.RecordBatch:
    """Return a batch of `count` rows, also when it has no column."""
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=fields)
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), count, [None]))


def constant(column: Column, count: int) -> pa.Array:
    """Return a column's read default, `count` times: its values in rows older than the column."""
    return pa.repeat(pa.scalar(column.read_default, column.type.arrow), count)


def cell_value(scalar: pa.Scalar, column: Column) -> object:
    """Return one cell as a Python value in canonical form."""
    if not scalar.is_valid:
        return None
    if column.type.is_timestamp:
        # Arrow looks up the time zone for every scalar, and cannot represent years above 9999.
        return timestamp_from_micros(scalar.value, column.type)
    return python_values(scalar.values) if column.type.is_array else scalar.as_py()
