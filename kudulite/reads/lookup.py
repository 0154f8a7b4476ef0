"""Lookups by primary key: one row, many rows at once, or all versions of one row.

**Rows** are found straight through bloom filter and key index. A current read takes each tablet as
its newest superblock shows it and needs no settled snapshot. Decoded column blocks stay in the
cache, so a warm read decodes nothing.

**Versions** are those that can still be read. Versions older than the retention are omitted, except
the one that was current at the ancient history mark, because a read at the mark still returns it.

**Keys** may be anything that holds columns: Arrow, pandas, Polars, DuckDB, rows as dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from kudulite.chain.manifest import Manifest, PartitionedTablets, TabletEntry
from kudulite.errors import KuduliteError, RowError, SchemaError
from kudulite.model.aliases import Key, Keys, Moment, Row
from kudulite.model.column_cast import cast_to_column
from kudulite.model.encoded_key import decode_key, encode_keys
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Column, Schema
from kudulite.reads.row_sources import arrow_batches, joined_batches, rows_table
from kudulite.rowset.rowset import RowSet
from kudulite.table.background_work import in_threads
from kudulite.table.present import listing, read_tablet
from kudulite.table.scan_plan import entries_of_key, planned_columns, readable_columns
from kudulite.table.snapshot import (
    ancient_history_mark,
    choose_snapshot,
    partitions_to_read,
    tablet_at,
)
from kudulite.table.table_store import TableStore
from kudulite.table.tags import newest_versions
from kudulite.tablet.row_gather import RowGather
from kudulite.tablet.tablet import Tablet
from kudulite.tablet.tablet_scan import KeyVersion, change_columns, change_fields, key_history
from kudulite.writes.batch_pieces import cuts, table_row_sizes

S = TypeVar("S")
T = TypeVar("T")
# Of rows with text or bytes, so many are read first, and so many bytes at once.
FIRST_ROWS, READ_BYTES = 1 << 12, 256 << 20
# Fewer keys are found sooner than threads begin.
PARALLEL_KEYS_MIN = 1 << 10
_GROWTH = 8  # later rows may be larger


@dataclass(frozen=True)
class _FoundRows:
    """Rows of one rowset, and the place of each among the keys that were looked up."""

    rowset: RowSet
    rowids: np.ndarray
    places: np.ndarray

    def read(
        self, columns: Sequence[Column], timestamp: int, keeps: Callable[[int], bool]
    ) -> Iterator[pa.Table]:
        """Yield the rows in their order, in parts of about READ_BYTES at most.

        The size of a row is known when some are read; an array cannot have more than 2 GiB.
        """
        names, start = [column.name for column in columns], 0
        has_bytes = any(column.type.is_bytes or column.type.is_array for column in columns)
        step = FIRST_ROWS if has_bytes else len(self.rowids)
        while start < len(self.rowids):
            rowids = self.rowids[start : start + step]
            arrays = self.rowset.read_rows(rowids, columns, timestamp, keeps=keeps)
            part = pa.Table.from_arrays(arrays, names=names)
            yield part
            start += len(rowids)
            by_size = READ_BYTES * len(rowids) // max(1, part.nbytes)
            step = max(1, min(by_size, step * _GROWTH))


@dataclass(frozen=True)
class KeyLookup:
    """Lookups in one table."""

    store: TableStore

    def get(self, key: Key, at: Moment | None) -> Row | None:
        """Return the row of `key` as a dict, or None."""
        self.store.metrics.gets += 1
        if at is None:
            return self._row(key, self._newest(key), TIMESTAMP_MAX)
        timestamp = choose_snapshot(self.store, at)
        return self._row(key, self.store.chain.newest_at(timestamp), timestamp)

    def _newest(self, key: Key) -> Manifest:
        """Return the newest version.

        While a store is asked for it, the row is read as it was seen last: that opens its files.
        """
        storage = self.store.storage
        if storage.requests_at_once == 1:
            return self.store.newest()

        def read_last() -> None:
            with suppress(KuduliteError):
                self._row(key, self.store.chain.newest_at(0), TIMESTAMP_MAX)

        steps: list[Callable[[], Any]] = [self.store.newest, read_last]
        newest: Manifest = storage.side_by_side(lambda step: step(), steps)[0]
        return newest

    def _row(self, key: Key, manifest: Manifest, timestamp: int) -> Row | None:
        """Return a row of a version; with TIMESTAMP_MAX as it is now, or was at its time."""
        schema, columns = self._columns_at(timestamp, manifest)
        values, encoded = _encoded_key(key, schema, self.store.name)
        values = _named_now(values, manifest)
        found = None
        for partition, tablets in partitions_to_read(self.store, manifest, timestamp):
            index = partition.tablet_of_key(values)
            if found is None and index >= 0:
                entry = tablets[index]
                tablet = (
                    read_tablet(self.store, entry, manifest.timestamp)  # was looked for just now
                    if timestamp == TIMESTAMP_MAX
                    else tablet_at(self.store, entry, timestamp)
                )
                found = tablet.locate_one(encoded, schema.key_width, timestamp)
        if found is None:
            return None
        rowset, rowid = found
        row = dict(zip(schema.key_names, decode_key(encoded, schema.key_types), strict=True))
        columns = columns[schema.key_count :]
        cells = rowset.read_row(rowid, columns, timestamp)
        row.update(zip((column.name for column in columns), cells, strict=True))
        return row

    def get_many(self, keys: Keys, at: Moment | None) -> pa.Table:
        """Return the rows whose keys exist, in the order of `keys`; all tablets at one moment."""
        timestamp = choose_snapshot(self.store, at)
        manifest = self.store.chain.newest_at(timestamp)
        schema, columns_read = self._columns_at(timestamp, manifest)
        has_room = self.store.cache.begin_turn()
        columns = self._key_columns(schema, keys)
        encoded = encode_keys(list(columns.values()), schema.key_types)
        partitions = partitions_to_read(self.store, manifest, timestamp)
        by_tablet = list(_rows_by_tablet(_named_now(columns, manifest), partitions))

        def located(of_tablet: tuple[TabletEntry, np.ndarray]) -> list[_FoundRows]:
            entry, rows = of_tablet
            tablet = tablet_at(self.store, entry, timestamp)
            return list(_rows_of_keys(tablet, encoded.take(rows), rows, timestamp))

        found = list(chain.from_iterable(self._of_each(by_tablet, located, len(encoded))))
        fields = schema.result_schema()
        if not found:
            return fields.empty_table()
        places = np.concatenate([each.places for each in found])
        order = np.argsort(places, kind="stable")
        given = pa.array(places[order])
        arrays = [columns[name].take(given) for name in schema.key_names]
        columns_read = columns_read[schema.key_count :]
        if columns_read:

            def read(rows: _FoundRows) -> list[pa.Table]:
                return list(rows.read(columns_read, timestamp, has_room))

            parts = self._of_each(found, read, len(encoded))
            arrays += in_order(pa.concat_tables(chain.from_iterable(parts)), order).columns
        return pa.Table.from_arrays(arrays, names=schema.names).cast(fields)

    def _of_each(self, items: Sequence[S], work: Callable[[S], T], key_count: int) -> Iterable[T]:
        """Return `work` of each item, in order; in threads for many keys that are not in the cache.

        The first item shows whether they are. Values in the cache are copied sooner than
        threads take turns. Reads that wait for a store wait side by side.
        """
        if key_count < PARALLEL_KEYS_MIN or self.store.storage.requests_at_once > 1:
            return self.store.storage.side_by_side(work, items)
        misses = self.store.cache.statistics.miss_count
        first = [work(item) for item in items[:1]]
        is_cold = self.store.cache.statistics.miss_count > misses
        rest = in_threads("lookup", work, items[1:]) if is_cold else map(work, items[1:])
        return chain(first, rest)

    def _columns_at(self, timestamp: int, manifest: Manifest) -> tuple[Schema, Sequence[Column]]:
        """Return the schema of a moment, and its columns as a read of then finds them in files."""
        then = manifest.schema_at(timestamp)
        if then is manifest.schema:
            return then, then.columns
        planned = planned_columns(then, then.names, ())
        return then, readable_columns(self.store.name, planned, timestamp, manifest)

    def tablet_index(self, keys: Keys) -> pa.Array:
        """Return int32 per row of key columns: which tablet owns it, -1 where no range does."""
        manifest = self.store.newest()
        schema = manifest.schema  # rows are numbered within a tablet: ids need not be there
        names = [name for name in schema.key_names if name != schema.auto_incrementing]
        columns = self._key_columns(schema, keys, names)
        return pa.array(manifest.partition.tablet_index(columns, _row_count(columns)))

    def keys_by_tablet(self, keys: Keys) -> dict[str, KeyArray]:
        """Return the distinct keys, ascending, by the id of each tablet that may have them.

        Tablets of dropped ranges are included.
        """
        manifest = self.store.newest()
        columns = self._key_columns(manifest.schema, keys)
        encoded = encode_keys(list(columns.values()), manifest.schema.key_types)
        found = {}
        for entry, rows in _rows_by_tablet(columns, manifest.partitions_at(0)):
            own = encoded.take(rows)
            own = own.take(own.sort_order())
            found[entry.id] = own.take(np.flatnonzero(~own.equals_previous()))
        return found

    def _key_columns(
        self, schema: Schema, keys: Keys, wanted: Sequence[str] | None = None
    ) -> dict[str, pa.Array]:
        table = key_table(keys, schema, self.store.name, wanted)
        columns = {}
        for column in schema.key_columns[: table.num_columns]:
            array = cast_to_column(
                table.column(column.name), column.type, column=column.name, table=self.store.name
            )
            if array.null_count:
                raise RowError(
                    f"table {self.store.name!r}: null in key column {column.name!r} of a lookup",
                    reason=RowError.REASON_NULL,
                    row_count=array.null_count,
                )
            columns[column.name] = array
        return columns


def _named_now(columns: Mapping[str, T], manifest: Manifest) -> dict[str, T]:
    """Return values of the key columns under the names of now, as partitionings have them."""
    return dict(zip(manifest.schema.key_names, columns.values(), strict=True))


def in_order(rows: pa.Table, order: np.ndarray) -> pa.Table:
    """Return rows in the order of int64[n] row numbers, in chunks of READ_BYTES at most."""
    parts = [order]
    if rows.nbytes > READ_BYTES:
        sizes = table_row_sizes(rows)[order]
        parts = [order[start:stop] for start, stop, _ in cuts(sizes, READ_BYTES)]
    gather = RowGather(rows)
    chunks = [[gather.take(name, part) for name in rows.column_names] for part in parts]
    return pa.concat_tables([pa.Table.from_arrays(each, schema=rows.schema) for each in chunks])


def _row_count(columns: dict[str, pa.Array]) -> int:
    return len(next(iter(columns.values())))


def _rows_of_keys(
    tablet: Tablet, keys: KeyArray, places: np.ndarray, timestamp: int
) -> Iterator[_FoundRows]:
    """Yield the rows of those keys that exist, by rowset; `places` are the keys' numbers."""
    order = keys.sort_order()
    found = tablet.locate(keys.take(order), timestamp)
    for index in np.unique(found.rowset_index[found.is_found]):
        at = np.flatnonzero(found.rowset_index == index)
        yield _FoundRows(tablet.rowsets[index], found.rowid[at], places[order[at]])


def _rows_by_tablet(
    columns: dict[str, pa.Array], partitions: Iterable[PartitionedTablets]
) -> Iterator[tuple[TabletEntry, np.ndarray]]:
    """Yield each tablet that may have some of the keys, with the rows of these in `columns`."""
    for partition, tablets in partitions:
        index = partition.tablet_index(columns, _row_count(columns))
        for number in np.unique(index[index >= 0]):
            yield tablets[number], np.flatnonzero(index == number)


# The column of `Table.history` with who wrote a version.
WRITER_COLUMN = "_commit_writer"


def row_history(store: TableStore, key: Key) -> pa.Table:
    """Return the versions of the row of `key`, the oldest first; see `Table.history`."""
    manifest = store.newest()
    schema = manifest.schema
    values, encoded = _encoded_key(key, schema, store.name)
    entries = entries_of_key(manifest, values)
    tablets = [tablet_at(store, entry, TIMESTAMP_MAX) for entry in entries]
    # Asked after the tablets are open: what was collected before they were is before this.
    newest = store.newest()
    versions = key_history(tablets, encoded, schema, newest.history_start)
    versions = _held(versions, ancient_history_mark(store, newest))
    added = {column_id: c.until for c in manifest.schema_changes for column_id in c.added}
    # A version that ended before the column was added never had a value in it.
    cells = [
        [
            pa.nulls(1, column.type.arrow) if end <= added.get(column.id, 0) else version.cells[i]
            for version, end in zip(versions, _ends(versions), strict=True)
        ]
        for i, column in enumerate(schema.columns)
    ]
    fields = [pa.field(c.name, c.type.arrow, c.nullable or c.id in added) for c in schema.columns]
    fields += [*change_fields(nullable=True), pa.field(WRITER_COLUMN, pa.string())]
    arrays = [
        pa.concat_arrays([pa.nulls(0, column.type.arrow), *found])
        for column, found in zip(schema.columns, cells, strict=True)
    ]
    arrays += change_columns(
        pa.array([version.change_type for version in versions], pa.int8()),
        pa.array([version.timestamp for version in versions], pa.uint64()),
    )
    listed = newest_versions(store, listing(store))
    writers: dict[int | None, str] = {int(one.timestamp): one.writer for one in listed}
    arrays.append(pa.array([writers.get(v.timestamp) for v in versions], pa.string()))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _ends(versions: Sequence[KeyVersion]) -> Iterator[int]:
    """Yield when each version ended; a delete, when the row that it shows ended."""
    following = (*(version.timestamp for version in versions[1:]), None)
    for version, next_timestamp in zip(versions, following, strict=False):
        end = version.timestamp if version.is_delete else next_timestamp
        yield TIMESTAMP_MAX if end is None else end


def _held(versions: list[KeyVersion], mark: int) -> list[KeyVersion]:
    """Return the versions that a legal read shows, and the deletes after the mark."""
    first = 0
    for number, version in enumerate(versions):
        if version.timestamp is None or version.timestamp <= mark:
            first = number + 1 if version.is_delete else number
    return versions[first:]


def key_table(
    keys: Any, schema: Schema, table: str, wanted: Sequence[str] | None = None
) -> pa.Table:
    """Return keys (tuples, single values, dicts, or Arrow) as a table of the key columns.

    Only the key columns `wanted` are returned, and dicts and Arrow need no others.
    """
    wanted = schema.key_names if wanted is None else wanted
    if isinstance(keys, list | tuple):
        rows = [_key_dict(key, schema, wanted) for key in keys]
        return rows_table(rows, schema, table).select(wanted)
    names, batches = arrow_batches(keys, schema, table)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise SchemaError(f"table {table!r}: keys without column {missing[0]!r}")
    return joined_batches(batches).select(wanted)


def _encoded_key(key: Any, schema: Schema, table: str) -> tuple[dict[str, Any], bytes]:
    """Return one key, given as tuple, single value or dict, as a dict in key order, and encoded."""
    try:
        values = _key_dict(key, schema, schema.key_names)
        return values, schema.key_encoder(tuple(values.values()))
    except SchemaError as error:
        raise SchemaError(f"table {table!r}: {error}") from error


def _key_dict(key: Any, schema: Schema, wanted: Sequence[str]) -> dict[str, Any]:
    names = schema.key_names
    if isinstance(key, Mapping):
        missing = [name for name in wanted if name not in key]
        if missing:
            raise SchemaError(f"key {dict(key)!r} without column {missing[0]!r}")
        return {name: key[name] for name in wanted}
    values = tuple(key) if isinstance(key, list | tuple) else (key,)
    if len(values) != len(names):
        raise SchemaError(f"key {key!r} has {len(values)} values; the key is ({', '.join(names)})")
    return dict(zip(names, values, strict=True))
