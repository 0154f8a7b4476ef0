"""Tombstones: the keys that ordered writes have deleted, each with its ordering value.

    file := an Arrow IPC file, sorted by key, each key once; schema metadata as below
        key        binary, or fixed_size_binary of the keys' width
        value      the ordering column's type
        timestamp  uint64: when the delete was committed; 0: by the commit that wrote this file
    metadata "kudulite.tombstones" := {"format_version": 1, "width": bytes of each key or null}

Only ordered writes read tombstones, to drop changes older than a delete (ordering.py). A file is in
its tablet's folder, `tombstone-<uuid>.arrow`; its entry in the superblock names the ordering column
by id.

    newest      t8    t7    t6      each commit with ordered deletes adds one file …
    joined      └──t9──┘    t6      … and merges older files that are at most twice as long into it

So there are few files, each more than twice as long as all newer ones together, and a delete is
rewritten only a few times. A tombstone is kept for the table's history retention: a merge of files
omits deletes at or before the ancient history mark, and the next ordered delete or history
collection removes files that are wholly behind it.

Ordering values need a total order, given as arrays that can be sorted and compared:

    null  <  false < true  <  numbers  <  NaN      strings and binary by unsigned bytes
    arrays by their elements, a shorter one before those that it begins

A column becomes one or several *sort keys*: arrays without floats that are compared one after the
other. Loosely, -0.0 equals 0.0 and all NaN are equal, as in every other comparison of kudulite.
Exactly, only equal bits are equal, so that of two different rows one is always greater.

**Invariants**: (1) a file has at least one key; (2) a file never changes; a merge of files lists
its new file in their place.

**Threads**: any number may read; nothing here changes after it is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.basefile.block_cache import BlockCache
from kudulite.basefile.key_index import is_key_type
from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.model.types import widened
from kudulite.storage.json_form import readable
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import FileRef, Storage, read_verified
from kudulite.storage.storage_error import arrow_errors

_STEP = 2

FORMAT_VERSION = 1
TIMESTAMP_OF_COMMIT = 0
_METADATA_KEY = b"kudulite.tombstones"
_NAMES = ["key", "value", "timestamp"]

# By the size of a float: the integer type of that size, and its greatest value.
_INTEGERS = {2: (np.int16, 0x7FFF), 4: (np.int32, 0x7FFFFFFF), 8: (np.int64, (1 << 63) - 1)}


@dataclass(frozen=True)
class StagedTombstones:
    """A new file of a write, and the names of the files that it replaces."""

    meta: TombstoneFileMeta
    replaced: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Tombstones:
    """The files that one superblock lists, oldest first; `folder` is the tablet's folder."""

    metas: Sequence[TombstoneFileMeta]
    folder: Path
    cache: BlockCache

    def values_of(self, keys: KeyArray, column: Column) -> pa.Array:
        """Return for each of ascending `keys` the highest value of its deletes, or null if none."""
        highest = pa.nulls(len(keys), column.type.arrow)
        for meta in self.metas:
            if meta.column_id != column.id:
                continue
            rows = self._rows(meta, column)
            at = rows.keys.find(keys)
            values = rows.values.take(pa.array(at, mask=at < 0))
            is_higher = compare([values], [highest], exact=False) > 0
            highest = pc.if_else(pa.array(is_higher), values, highest)
        return highest

    def stage(
        self,
        keys: KeyArray,
        values: pa.Array,
        *,
        column: Column,
        schema: Schema,
        mark: int,
        files: NewFiles,
    ) -> StagedTombstones:
        """Write the deletes of ascending `keys` (at least one) to a new file of a bulk write.

        The new file replaces the files merged into it, and files that are not needed any more:
        those behind the ancient history mark, or of a dropped column.
        """
        stamps = np.full(len(keys), TIMESTAMP_OF_COMMIT, np.uint64)
        parts = [TombstoneRows(keys, values, stamps)]
        known = {each.id for each in schema.columns}
        replaced = {
            meta.ref.name
            for meta in self.metas
            if is_ancient(meta, mark) or meta.column_id not in known
        }
        row_count = len(keys)
        for meta in reversed(self.metas):
            if meta.column_id != column.id or meta.ref.name in replaced:
                continue
            if meta.row_count > _STEP * row_count:
                break
            rows = self._rows(meta, column)
            parts.append(rows.take(np.flatnonzero(rows.timestamps > mark)))
            row_count += meta.row_count
            replaced.add(meta.ref.name)
        joined = _joined(parts[::-1])
        new = write_tombstones(files, self.folder, column.id, joined)
        return StagedTombstones(new, frozenset(replaced))

    def without(self, files: NewFiles, keys: KeyArray) -> tuple[TombstoneFileMeta, ...]:
        """Rewrite the files that hold any of ascending `keys` without them, in the tablet's folder.

        Returns the entries of all files after that.
        """
        metas = []
        for meta in self.metas:
            rows = self._read(meta)
            left = np.flatnonzero(keys.find(rows.keys) < 0)
            if len(left) == len(rows):
                metas.append(meta)
            elif len(left):
                rest = rows.take(left)
                metas.append(write_tombstones(files, self.folder, meta.column_id, rest))
        return tuple(metas)

    def _rows(self, meta: TombstoneFileMeta, column: Column) -> TombstoneRows:
        """Return a file's rows; values are cast to the column's type, which may be wider now."""
        rows = self._read(meta)
        if rows.values.type.equals(column.type.arrow):
            return rows
        values = widened(rows.values, column.type.arrow)
        return TombstoneRows(rows.keys, values, rows.timestamps)

    def _read(self, meta: TombstoneFileMeta) -> TombstoneRows:
        path = self.folder / meta.ref.name

        def load() -> tuple[TombstoneRows, int]:
            rows = read_tombstones(self.cache.storage, path, meta)
            return rows, rows.nbytes

        rows: TombstoneRows = self.cache.get_or_load(str(path), load)
        return rows


def is_ancient(meta: TombstoneFileMeta, mark: int) -> bool:
    """Whether all deletes of a file are behind the ancient history mark."""
    return meta.timestamp_max <= mark


def _joined(parts: Sequence[TombstoneRows]) -> TombstoneRows:
    """Return the row with the highest value of each key; of equal values, that of the last part."""
    if len(parts) == 1:
        return parts[0]
    keys = KeyArray.concat([part.keys for part in parts])
    order = keys.sort_order()
    repeats = keys.take(order).equals_previous()
    rows = TombstoneRows(
        keys,
        pa.concat_arrays([part.values for part in parts]),
        np.concatenate([part.timestamps for part in parts]),
    )
    if not repeats.any():
        return rows.take(order)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(~repeats) - 1
    by_value = sorted_positions(
        [pa.array(group), *sort_keys(rows.values, exact=False), pa.array(np.arange(len(rows)))]
    )
    return rows.take(by_value[last_of_runs(group[by_value])])


@dataclass(frozen=True)
class TombstoneRows:
    """n deletes by ascending, distinct key: the ordering `values` and uint64[n] `timestamps`."""

    keys: KeyArray
    values: pa.Array
    timestamps: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return int(self.keys.nbytes + self.values.nbytes + self.timestamps.nbytes)

    def take(self, at: np.ndarray) -> TombstoneRows:
        """Return the deletes at int64[m] positions, in that order."""
        return TombstoneRows(
            self.keys.take(at), self.values.take(pa.array(at)), self.timestamps[at]
        )


@dataclass(frozen=True)
class TombstoneFileMeta:
    """The superblock's entry of a file: ordering column, row count, and range of timestamps."""

    ref: FileRef
    column_id: int
    row_count: int
    timestamp_min: int = TIMESTAMP_OF_COMMIT
    timestamp_max: int = TIMESTAMP_OF_COMMIT

    def stamped(self, timestamp: int) -> TombstoneFileMeta:
        """Return the entry of a staged file with the timestamp of its commit."""
        first = self.timestamp_min or timestamp
        return replace(self, timestamp_min=first, timestamp_max=timestamp)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the superblock keeps."""
        return {
            "file": self.ref.to_json(),
            "column_id": self.column_id,
            "row_count": self.row_count,
            "timestamps": [self.timestamp_min, self.timestamp_max],
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> TombstoneFileMeta:
        """Build an entry from `to_json`'s form."""
        first, last = value["timestamps"]
        ref = FileRef.from_json(value["file"])
        numbers = (value["column_id"], value["row_count"], first, last)
        if any(type(n) is not int or not 0 <= n <= TIMESTAMP_MAX for n in numbers):
            raise ValueError(f"{numbers} of tombstones, expected integers from 0")
        return TombstoneFileMeta(ref, *numbers)


def write_tombstones(
    files: NewFiles, folder: Path, column_id: int, rows: TombstoneRows
) -> TombstoneFileMeta:
    """Write `rows` (at least one) to a new file; the caller syncs `files`. Raises StorageError."""
    assert len(rows)
    assert rows.keys.is_sorted(strict=True)
    header = {"format_version": FORMAT_VERSION, "width": rows.keys.width}
    arrays = [rows.keys.to_arrow(), rows.values, pa.array(rows.timestamps, pa.uint64())]
    batch = pa.RecordBatch.from_arrays(arrays, names=_NAMES)
    batch = batch.replace_schema_metadata({_METADATA_KEY: json.dumps(header).encode()})
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with files.sink(folder, "tombstone") as sink:
        file = pa.PythonFile(sink, mode="w")
        with pa.ipc.new_file(file, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        ref = sink.finish()
    known = rows.timestamps[rows.timestamps != TIMESTAMP_OF_COMMIT]
    first = int(known.min()) if len(known) else TIMESTAMP_OF_COMMIT
    last = int(known.max()) if len(known) else TIMESTAMP_OF_COMMIT
    return TombstoneFileMeta(ref, column_id, len(rows), first, last)


def read_tombstones(storage: Storage, path: Path, meta: TombstoneFileMeta) -> TombstoneRows:
    """Return the deletes of a file, all with timestamps. Raises StorageError, CorruptionError."""
    content = read_verified(storage, path, meta.ref)
    with arrow_errors(path, "not a file of tombstones"):
        table = pa.ipc.open_file(content).read_all()
        table.validate(full=True)
        table = table.combine_chunks()
        header = json.loads((table.schema.metadata or {})[_METADATA_KEY])
        version, width = header["format_version"], header["width"]
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{path}: tombstones of format version {version}, known: {FORMAT_VERSION}; upgrade"
            " kudulite to read it"
        )
    if table.column_names != _NAMES or table.num_rows != meta.row_count:
        raise CorruptionError(
            f"{path}: columns {', '.join(table.column_names)} with {table.num_rows} rows, expected"
            f" {', '.join(_NAMES)} with {meta.row_count}"
        )
    keys, values, stamps = (column.combine_chunks() for column in table.columns)
    if not is_key_type(keys.type, width) or stamps.type != pa.uint64():
        raise CorruptionError(
            f"{path}: keys of {keys.type} and timestamps of {stamps.type}, expected keys of"
            f" {width or 'any'} bytes and timestamps of uint64"
        )
    with readable(str(path), "a file of tombstones"):
        key_array = KeyArray.from_arrow(keys, width)
    is_ascending = key_array.is_sorted(strict=True)
    if not is_ascending or any(column.null_count for column in (keys, values, stamps)):
        raise CorruptionError(f"{path}: keys do not ascend, or a value is null")
    timestamps = stamps.to_numpy().astype(np.uint64)
    timestamps[timestamps == TIMESTAMP_OF_COMMIT] = meta.timestamp_max
    return TombstoneRows(key_array, values, timestamps)


def sort_keys(values: pa.Array, *, exact: bool) -> list[pa.Array]:
    """Return arrays of `len(values)` that compare as `values` do; the first difference decides.

    Sort keys are comparable only with others of the same call.
    """
    keys = []
    if values.null_count:
        keys.append(values.is_valid().cast(pa.uint8()))
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return keys + _element_keys(values, exact)
    if pa.types.is_floating(values.type):
        return [*keys, _float_key(values, exact)]
    if pa.types.is_boolean(values.type):
        return [*keys, values.cast(pa.uint8())]
    return [*keys, values]


def sorted_positions(keys: Sequence[pa.Array]) -> np.ndarray:
    """Return int64[n]: the positions of rows in the order of sort keys, compared in turn."""
    names = [str(number) for number in range(len(keys))]
    table = pa.Table.from_arrays(list(keys), names=names)
    order: pa.Array = pc.sort_indices(table, [(name, "ascending") for name in names])
    return np.asarray(order.to_numpy(), np.int64)


def last_of_runs(groups: np.ndarray) -> np.ndarray:
    """Return int64[m]: the last position of each run of equal numbers."""
    return np.flatnonzero(np.append(groups[1:] != groups[:-1], True)[: len(groups)])


def compare(left: Sequence[pa.Array], right: Sequence[pa.Array], *, exact: bool) -> np.ndarray:
    """Return int8[n]: -1, 0 or 1 if row i of the columns `left` is less than row i of `right`,
    equal to it, or greater; the first column that differs decides.
    """
    count = len(left[0])
    sign = np.zeros(count, np.int8)
    for ours, theirs in zip(left, right, strict=True):
        for key in sort_keys(pa.concat_arrays([ours, theirs]), exact=exact):
            if sign.all():
                return sign
            first, second = key.slice(0, count), key.slice(count)
            open_rows = sign == 0
            sign[open_rows & _is_true(pc.greater(first, second))] = 1
            sign[open_rows & _is_true(pc.less(first, second))] = -1
    return sign


def equals_previous(keys: Sequence[pa.Array]) -> np.ndarray:
    """Return bool[n]: whether each row of the sort keys equals the previous row."""
    count = len(keys[0])
    equal = np.ones(count, dtype=bool)
    equal[:1] = False
    for key in keys:
        before, after = key.slice(0, max(0, count - 1)), key.slice(1)
        both_null = pc.and_(before.is_null(), after.is_null())
        equal[1:] &= _is_true(pc.equal(before, after)) | _is_true(both_null)
    return equal


def _is_true(flags: pa.Array) -> np.ndarray:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False))


def _float_key(values: pa.Array, exact: bool) -> pa.Array:
    """Return integers that have the same order as the floats."""
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False)
    if not exact:
        numbers = np.where(np.isnan(numbers), np.array(np.nan, numbers.dtype), numbers)
        numbers = numbers + np.array(0.0, numbers.dtype)  # -0.0 + 0.0 is 0.0
    integer, greatest = _INTEGERS[numbers.dtype.itemsize]
    bits = np.ascontiguousarray(numbers).view(integer)
    # The bits of negative floats descend as the floats ascend: flip all bits except the sign.
    return pa.array(np.where(bits < 0, bits ^ integer(greatest), bits))


def _element_keys(lists: pa.Array, exact: bool) -> list[pa.Array]:
    """Return the sort keys of the first elements of lists, then of the second elements, and so on.

    A flag precedes each: whether the list has that element. A list that has ended is less.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    starts = lists.offsets.to_numpy(zero_copy_only=False)[:-1]
    keys: list[pa.Array] = []
    for place in range(int(lengths.max(initial=0))):
        has_more = lengths > place
        keys.append(pa.array(has_more.astype(np.uint8)))
        at = pa.array(starts + place, mask=~has_more)
        keys += sort_keys(lists.values.take(at), exact=exact)
    return keys or [pa.array(np.zeros(len(lists), np.uint8))]
