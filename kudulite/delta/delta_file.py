"""DeltaFile: changes to the rows of one DiskRowSet, in one Arrow IPC file.

    file     := Arrow IPC file, one record batch, lz4 buffers
                sorted by (rowid, timestamp): REDO ascending, UNDO newest first within a row
    columns  := rowid:uint32  [timestamp:uint64]  op:uint8  then per changed column id N:
                vN: the new values   [sN: bool, which rows set it]
    metadata := {"format_version": "1"} on the schema

A file whose changes share one timestamp has no `timestamp` column: the timestamp is in the file's
`DeltaFileMeta`, because it is known only at commit, after the file is written. `sN` is left out
where every row sets the column.

REDO takes base data forward. UNDO takes it back, from the newest change to the oldest: an UPDATE
sets the values from before the change, a DELETE means that the row did not exist before, and a
REINSERT has the whole row that a delete removed.

In memory the changes are `DeltaRows`, which the functions below cut, join and order with a few
array operations each. After a join, a column that a part does not set is null there, with `is_set`
false.

**Invariants**: (1) a file is never changed; (2) a file without `timestamp` has each rowid at most
once; (3) a DELETE sets no column.

**Damage**: The file's own CRC is compared at its first use. Each column is validated in full when
it is first read, because a file may be made to fit its CRC: types, lengths, offsets, UTF-8, the
order of row ids, and operations.

**Threads**: any number may read one `DeltaFile`; loaded parts are immutable, and loading one twice
does no harm.

**Source**: Kudu tablet.md, "Delta tracking".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.model.schema import Column
from kudulite.model.types import is_widened
from kudulite.storage.json_form import JsonForm, Stored
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import FileRef, Sink, Storage, check_content
from kudulite.storage.storage_error import arrow_errors

FORMAT_VERSION = 1
OP_UPDATE, OP_DELETE, OP_REINSERT = 0, 1, 2  # on disk: do not renumber
_BUFFER_BYTES = 1 << 16
_OPEN_FILES_MAX = 8
TIMESTAMP_UNASSIGNED = 0

_COLUMN_TYPES = {"rowid": pa.uint32(), "timestamp": pa.uint64(), "op": pa.uint8()}

# The memory of an Arrow array beside its cells: the Python and C++ objects around the buffers.
_ARRAY_OVERHEAD_BYTES = 300


class DeltaColumn(NamedTuple):
    """New values of one column; `is_set` (bool[n]) marks the rows that have one, None is all."""

    values: pa.Array
    is_set: np.ndarray | None = None


@dataclass(frozen=True)
class DeltaRows:
    """n changes: `rowids` int64[n], `ops` uint8[n], columns by id, n values each.

    `timestamps` is uint64[n], or None when all share one. The changes of a file ascend by row id;
    the changes of a DeltaMemStore are in order of time.
    """

    rowids: np.ndarray
    ops: np.ndarray
    columns: Mapping[int, DeltaColumn]
    timestamps: np.ndarray | None = None

    @property
    def row_count(self) -> int:
        """Number of changes."""
        return len(self.rowids)

    @property
    def timestamp_min(self) -> int:
        """The oldest change; TIMESTAMP_UNASSIGNED where the timestamp is not known yet."""
        return TIMESTAMP_UNASSIGNED if self.timestamps is None else int(self.timestamps.min())

    @property
    def timestamp_max(self) -> int:
        """The newest change; TIMESTAMP_UNASSIGNED where the timestamp is not known yet."""
        return TIMESTAMP_UNASSIGNED if self.timestamps is None else int(self.timestamps.max())

    @cached_property
    def delete_count(self) -> int:
        """Number of DELETEs."""
        return int(np.count_nonzero(self.ops == OP_DELETE))

    @cached_property
    def reinsert_count(self) -> int:
        """Number of REINSERTs."""
        return int(np.count_nonzero(self.ops == OP_REINSERT))

    @cached_property
    def update_counts(self) -> Mapping[int, int]:
        """How many changes set a column, by its id."""
        return {
            column_id: len(self.rowids) if c.is_set is None else int(np.count_nonzero(c.is_set))
            for column_id, c in self.columns.items()
        }


@dataclass(frozen=True)
class DeltaFileMeta(JsonForm):
    """The superblock's entry of a DeltaFile, with the statistics to skip it unopened.

    `timestamp` is that of all changes, or None when each change has its own. `update_counts` maps
    a column id to the number of changes that set it.
    """

    ref: Annotated[FileRef, Stored("file")]
    timestamp: int | None
    timestamp_min: int
    timestamp_max: int
    row_count: int
    delete_count: int
    reinsert_count: int
    update_counts: Mapping[int, int]

    def stamped(self, timestamp: int) -> DeltaFileMeta:
        """Return the same entry with the commit's timestamp."""
        return replace(self, timestamp=timestamp, timestamp_min=timestamp, timestamp_max=timestamp)


def create_delta_file(files: NewFiles, folder: Path, kind: str, rows: DeltaRows) -> DeltaFileMeta:
    """Write `rows` to a new file of `folder`; `kind` is "redo" or "undo".

    The file is durable, and its name once `files` are synced. A timestamp that all rows share is
    written to the entry and not to the file.
    """
    return create_delta_files(files, kind, [(folder, rows)])[0]


def create_delta_files(
    files: NewFiles, kind: str, parts: Sequence[tuple[Path, DeltaRows]]
) -> list[DeltaFileMeta]:
    """Write the rows of each part to a new file of its folder as `create_delta_file` does.

    Files are synced after all of them have been written, because the first sync of a file system
    with a journal then does most of the work of the others.
    """
    metas: list[DeltaFileMeta] = []
    for start in range(0, len(parts), _OPEN_FILES_MAX):
        some = parts[start : start + _OPEN_FILES_MAX]
        with ExitStack() as stack:
            sinks, written = [], []
            for folder, rows in some:
                sink = stack.enter_context(files.sink(folder, kind))
                timestamp = _common_timestamp(rows)
                stored = rows if timestamp is None else replace(rows, timestamps=None)
                _write(sink, stored)
                sinks.append(sink)
                written.append((stored, timestamp))
            refs = files.storage.side_by_side(lambda sink: sink.finish(), sinks)
            for ref, (stored, timestamp) in zip(refs, written, strict=True):
                meta = _describe(ref, stored)
                metas.append(meta if timestamp is None else meta.stamped(timestamp))
    return metas


def write_deltas(
    files: NewFiles, folder: Path, kind: str, rows: DeltaRows | None
) -> tuple[DeltaFileMeta, ...]:
    """Write changes, if any, to a new "redo" or "undo" file of the rowset in `folder`.

    The file is durable, and its name once `files` are synced.
    """
    if rows is None or not len(rows.rowids):
        return ()
    return (create_delta_file(files, folder, kind, without_unset(rows)),)


def _write(sink: Sink, rows: DeltaRows) -> None:
    assert len(rows.rowids) > 0
    assert (rows.rowids[1:] >= rows.rowids[:-1]).all(), "rows of a file ascend by row id"
    arrays: list[pa.Array] = [pa.array(rows.rowids.astype(np.uint32))]
    names = ["rowid"]
    if rows.timestamps is not None:
        arrays.append(pa.array(rows.timestamps, pa.uint64()))
        names.append("timestamp")
    arrays.append(pa.array(rows.ops, pa.uint8()))
    names.append("op")
    for column_id, column in rows.columns.items():
        arrays.append(column.values)
        names.append(f"v{column_id}")
        if column.is_set is not None:
            arrays.append(pa.array(column.is_set))
            names.append(f"s{column_id}")
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    schema = batch.schema.with_metadata({"format_version": str(FORMAT_VERSION)})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    # The buffer makes one write of the many parts of a small file.
    with pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), _BUFFER_BYTES) as buffered:
        with pa.ipc.new_file(buffered, schema, options=options) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))


def _common_timestamp(rows: DeltaRows) -> int | None:
    """Return the timestamp of all changes; None if they differ or a row has several changes."""
    stamps = rows.timestamps
    if stamps is None or not len(stamps) or (stamps != stamps[0]).any():
        return None
    return int(stamps[0]) if (rows.rowids[1:] > rows.rowids[:-1]).all() else None


def _describe(ref: FileRef, rows: DeltaRows) -> DeltaFileMeta:
    return DeltaFileMeta(
        ref=ref,
        timestamp=TIMESTAMP_UNASSIGNED if rows.timestamps is None else None,
        timestamp_min=rows.timestamp_min,
        timestamp_max=rows.timestamp_max,
        row_count=len(rows.rowids),
        delete_count=rows.delete_count,
        reinsert_count=rows.reinsert_count,
        update_counts=rows.update_counts,
    )


class DeltaFile:
    """A DeltaFile on disk, whose columns are read when they are first needed."""

    def __init__(
        self, storage: Storage, path: Path, meta: DeltaFileMeta, row_count_base: int
    ) -> None:
        """`row_count_base` is the row count of the DiskRowSet; all row ids are below it."""
        self._storage = storage
        self.path = path
        self.meta = meta
        self._row_count_base = row_count_base
        self._content: pa.Buffer | None = None
        self._is_checked = False
        self._schema: pa.Schema | None = None
        self._validated: set[str] = set()
        self._rowids: np.ndarray | None = None
        self._ops: np.ndarray | None = None
        # The columns of which somebody has the values: appliers of several moments share them.
        self._shared: WeakValueDictionary[int, pa.Array] = WeakValueDictionary()

    @property
    def rowids(self) -> np.ndarray:
        """int64[n], ascending."""
        if self._rowids is None:
            stored, ops = self._read(("rowid", "op"))
            rowids = stored.to_numpy().astype(np.int64)
            if len(rowids) and int(rowids.max()) >= self._row_count_base:
                raise CorruptionError(
                    f"{self.path}: {len(rowids)} rows up to row id {rowids.max()}, expected row ids"
                    f" below {self._row_count_base}"
                )
            steps = np.diff(rowids)
            if (steps < (0 if self.meta.timestamp is None else 1)).any():
                raise CorruptionError(f"{self.path}: row ids do not ascend")
            self._ops = self._checked_ops(ops)
            self._rowids = rowids
        return self._rowids

    @property
    def ops(self) -> np.ndarray:
        """uint8[n], OP_ constants."""
        if self._ops is None:
            self._ops = self._checked_ops(self._read(("op",))[0])
        return self._ops

    def _checked_ops(self, stored: pa.Array) -> np.ndarray:
        ops: np.ndarray = stored.to_numpy()
        if ops.max(initial=0) > OP_REINSERT:
            raise CorruptionError(
                f"{self.path}: operation {ops.max()}, expected 0 to {OP_REINSERT}"
            )
        return ops

    def timestamps(self) -> np.ndarray | None:
        """Return uint64[n], or None when the whole file has the timestamp of its entry."""
        return None if self.meta.timestamp is not None else self._read(("timestamp",))[0].to_numpy()

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return the new values of one column, or None if the file never sets it."""
        return self.columns((column_id,)).get(column_id)

    def columns(self, column_ids: Collection[int]) -> dict[int, DeltaColumn]:
        """Return the new values of columns, of those that the file sets; it is opened once."""
        ids = [column_id for column_id in column_ids if column_id in self.meta.update_counts]
        found = {c: DeltaColumn(v) for c in ids if (v := self._shared.get(c)) is not None}
        missing = [column_id for column_id in ids if column_id not in found]
        if not missing:
            return found
        masks = [f"s{c}" for c in missing if self._open_schema().get_field_index(f"s{c}") >= 0]
        names = [f"v{c}" for c in missing] + masks
        read = dict(zip(names, self._read(names), strict=True))
        for column_id in missing:
            values, is_set = read[f"v{column_id}"], read.get(f"s{column_id}")
            if is_set is None:
                self._shared[column_id] = values
                found[column_id] = DeltaColumn(values)
            else:
                found[column_id] = DeltaColumn(values, is_set.to_numpy(zero_copy_only=False))
        return found

    def read(self) -> DeltaRows:
        """Return the whole file."""
        columns = self.columns(self.meta.update_counts)
        return DeltaRows(self.rowids, self.ops, columns, self.timestamps())

    @property
    def is_loaded(self) -> bool:
        """Whether the content is in memory; never where the file is mapped."""
        return self._content is not None

    def load(self) -> None:
        """Open the file; its content stays in memory, unless it is mapped."""
        self._open()

    def _open(self) -> pa.Buffer:
        if self._content is not None:
            return self._content
        source = self._storage.open_whole(self.path, self.meta.ref)
        content = source.content()
        if not self._is_checked:
            check_content(self.path, content, self.meta.ref)
            self._is_checked = True
        # Appliers keep their files longer than the cache does, so a map is not kept here.
        if not source.is_map:
            self._content = content
        return content

    def _open_schema(self) -> pa.Schema:
        if self._schema is None:
            source = self._open()
            with arrow_errors(self.path, "not a delta file"):
                schema = pa.ipc.open_file(source).schema
                version = int((schema.metadata or {}).get(b"format_version", b"0"))
            if version != FORMAT_VERSION:
                raise FormatVersionError(
                    f"{self.path}: delta file of format version {version}, known:"
                    f" {FORMAT_VERSION}; upgrade kudulite to read it"
                )
            self._schema = schema
        return self._schema

    def _read(self, names: Sequence[str]) -> list[pa.Array]:
        """Return columns of the file; no others are decoded."""
        indexes = [self._open_schema().get_field_index(name) for name in names]
        if min(indexes) < 0:
            missing = names[indexes.index(-1)]
            raise CorruptionError(f"{self.path}: no column {missing} in the delta file")
        in_order = sorted(indexes)
        options = pa.ipc.IpcReadOptions(included_fields=in_order, use_threads=False)
        source = self._open()
        with arrow_errors(self.path, f"cannot read {', '.join(names)}"):
            batch = pa.ipc.open_file(source, options=options).get_batch(0)
            found = dict(zip(in_order, batch.columns, strict=True))
            columns = [found[index] for index in indexes]
            for name, column in zip(names, columns, strict=True):
                if name not in self._validated:
                    if not _is_plain_text(column):
                        column.validate(full=True)
                    self._check_column(name, column)
                    self._validated.add(name)
        return columns

    def _check_column(self, name: str, column: pa.Array) -> None:
        count = self.meta.row_count
        if len(column) != count:
            raise CorruptionError(
                f"{self.path}: {len(column)} rows of {name}, expected {count} rows"
            )
        expected = pa.bool_() if name.startswith("s") else _COLUMN_TYPES.get(name)
        if expected is not None and (column.type != expected or column.null_count):
            raise CorruptionError(
                f"{self.path}: {name} is {column.type} with {column.null_count} nulls, expected"
                f" {expected} without"
            )


def _is_plain_text(column: pa.Array) -> bool:
    """Whether a column is text of ASCII letters without nulls; to validate it in full is slower."""
    validity, *rest = column.buffers()
    if not pa.types.is_string(column.type) or validity is not None or column.null_count:
        return False
    column.validate()  # that the first and the last offset are in the buffer
    offsets, text = rest
    if not len(column) or text is None:
        return False
    ends = np.frombuffer(offsets, np.int32, column.offset + len(column) + 1)[column.offset :]
    letters = np.frombuffer(text, np.uint8)[ends[0] : ends[-1]]
    return bool((ends[1:] >= ends[:-1]).all() and letters.max(initial=0) < 0x80)


def slice_rows(rows: DeltaRows, start: int, stop: int) -> DeltaRows:
    """Return rows start..stop without a copy."""
    if start == 0 and stop >= len(rows.rowids):
        return rows
    columns = {
        column_id: DeltaColumn(
            column.values.slice(start, stop - start),
            None if column.is_set is None else column.is_set[start:stop],
        )
        for column_id, column in rows.columns.items()
    }
    stamps = None if rows.timestamps is None else rows.timestamps[start:stop]
    return DeltaRows(rows.rowids[start:stop], rows.ops[start:stop], columns, stamps)


def rows_between(rows: DeltaRows, start: int, stop: int) -> DeltaRows:
    """Return the changes of row ids start..stop in ascending `rows`, their row ids from 0."""
    low, high = np.searchsorted(rows.rowids, [start, stop]).tolist()
    part = slice_rows(rows, low, high)
    return replace(part, rowids=part.rowids - start)


def take_rows(rows: DeltaRows, at: np.ndarray) -> DeltaRows:
    """Return the rows at int64[m] positions `at`, in that order."""
    indices = pa.array(at)
    columns = {
        column_id: DeltaColumn(
            column.values.take(indices), None if column.is_set is None else column.is_set[at]
        )
        for column_id, column in rows.columns.items()
    }
    stamps = None if rows.timestamps is None else rows.timestamps[at]
    return DeltaRows(rows.rowids[at], rows.ops[at], columns, stamps)


def take_cells(
    rows: DeltaRows, column: Column, at: np.ndarray, unset: pa.Array | None = None
) -> pa.Array:
    """Return a column's values at positions `at`; those of `unset` or null where not set."""
    delta = rows.columns.get(column.id)
    if unset is None:
        unset = pa.nulls(len(at), column.type.arrow)
    if delta is None:
        return unset
    values = delta.values.take(pa.array(at))
    if delta.is_set is None:
        return values
    return pc.if_else(pa.array(delta.is_set[at]), values, unset)


def without_unset(rows: DeltaRows) -> DeltaRows:
    """Return rows without the columns that no row sets, and without masks that are all true."""
    columns = {}
    for column_id, column in rows.columns.items():
        if column.is_set is None or column.is_set.all():
            columns[column_id] = DeltaColumn(column.values)
        elif column.is_set.any():
            columns[column_id] = column
    return DeltaRows(rows.rowids, rows.ops, columns, rows.timestamps)


def sort_rows(rows: DeltaRows) -> DeltaRows:
    """Return changes in order of time by row id, and for each row still in order of time."""
    if len(rows.rowids) < 2 or (rows.rowids[1:] >= rows.rowids[:-1]).all():
        return rows
    return take_rows(rows, np.argsort(rows.rowids, kind="stable"))


def concat_rows(parts: Sequence[DeltaRows]) -> DeltaRows:
    """Return the rows of all parts (at least one, all with timestamps), one after the other."""
    if len(parts) == 1:
        return parts[0]
    stamps = [part.timestamps for part in parts if part.timestamps is not None]
    assert len(stamps) == len(parts), "parts without timestamps of their own cannot be joined"
    column_ids = dict.fromkeys(column_id for part in parts for column_id in part.columns)
    lengths = [len(part.rowids) for part in parts]
    columns = {}
    for column_id in column_ids:
        column = concat_columns([part.columns.get(column_id) for part in parts], lengths)
        assert column is not None
        columns[column_id] = column
    return DeltaRows(
        rowids=np.concatenate([part.rowids for part in parts]),
        ops=np.concatenate([part.ops for part in parts]),
        columns=columns,
        timestamps=np.concatenate(stamps),
    )


def concat_columns(
    parts: Sequence[DeltaColumn | None], lengths: Sequence[int]
) -> DeltaColumn | None:
    """Return the cells of parts with `lengths` rows each, or None if no part sets any.

    If the column's type was widened between parts, the cells have the widest type.
    """
    arrow_type = next((part.values.type for part in parts if part is not None), None)
    if arrow_type is None:
        return None
    values = concat_values(
        [
            pa.nulls(length, arrow_type) if part is None else part.values
            for part, length in zip(parts, lengths, strict=True)
        ]
    )
    if all(part is not None and part.is_set is None for part in parts):
        return DeltaColumn(values)
    is_set = np.ones(len(values), dtype=bool)
    stop = 0
    for part, length in zip(parts, lengths, strict=True):
        start, stop = stop, stop + length
        if part is None:
            is_set[start:stop] = False
        elif part.is_set is not None:
            is_set[start:stop] = part.is_set
    return DeltaColumn(values, is_set)


def concat_moved(parts: Sequence[DeltaRows | None], starts: np.ndarray) -> DeltaRows | None:
    """Return the changes of parts, each part's row ids moved up by its start; None: no change."""
    moved = [
        replace(changes, rowids=changes.rowids + start)
        for changes, start in zip(parts, starts, strict=False)
        if changes is not None
    ]
    return concat_rows(moved) if moved else None


def concat_values(parts: Sequence[pa.Array]) -> pa.Array:
    """Return the values of parts of one column, in the widest of their types."""
    first = parts[0].type
    if all(part.type.equals(first) for part in parts):
        return pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
    widest = first
    for part in parts:
        if not is_widened(part.type, widest):
            if not is_widened(widest, part.type):
                raise CorruptionError(
                    f"deltas of one column have values of {widest} and of {part.type}; `kudulite"
                    " check` finds the file"
                )
            widest = part.type
    return pa.concat_arrays([part.cast(widest) for part in parts])


def nbytes_of(rows: DeltaRows) -> int:
    """Return approximate memory in bytes: buffers and the objects around them."""
    total = rows.rowids.nbytes + rows.ops.nbytes
    for column in rows.columns.values():
        total += column.values.get_total_buffer_size() + _ARRAY_OVERHEAD_BYTES
        if column.is_set is not None:
            total += column.is_set.nbytes
    return total + (0 if rows.timestamps is None else rows.timestamps.nbytes)
