"""Rows by primary key: one, or many at once, straight through bloom filter and key index.

A current read takes each tablet as its newest superblock shows it and needs no settled snapshot.
Decoded column blocks stay in the cache, so a warm read decodes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kudulite.catalog.history import partitions_to_read, tablet_at
from kudulite.catalog.manifest import Manifest
from kudulite.catalog.snapshot import choose_snapshot
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_input import key_table, key_values
from kudulite.errors import RowError, SchemaError
from kudulite.model.aliases import Key, Keys, Moment, Row
from kudulite.model.column_cast import cast_to_column
from kudulite.model.encoded_key import decode_key, encode_keys, key_width
from kudulite.model.key_array import KeyArray
from kudulite.mvcc.hybrid_time import TIMESTAMP_MAX
from kudulite.tablet.tablet import Tablet


@dataclass(frozen=True)
class KeyLookup:
    """Lookups in one table."""

    store: TableStore

    def get(self, key: Key, at: Moment | None) -> Row | None:
        """Return the row of `key` as a dict, or None."""
        timestamp = TIMESTAMP_MAX if at is None else choose_snapshot(self.store, at)
        manifest = self.store.newest()
        schema = manifest.schema
        try:
            given = key_values(key, schema)
            encoded = schema.key_encoder(given)
        except SchemaError as error:
            raise SchemaError(f"table {self.store.name!r}: {error}") from error
        values = dict(zip(schema.key_names, given, strict=True))
        found = None
        for partition, tablets in partitions_to_read(self.store, manifest, timestamp):
            index = partition.tablet_of_key(values)
            if found is None and index >= 0:
                tablet = tablet_at(self.store, tablets[index], timestamp)
                found = tablet.locate_one(encoded, key_width(schema.key_types), timestamp)
        if found is None:
            return None
        rowset, rowid = found
        row = dict(zip(schema.key_names, decode_key(encoded, schema.key_types), strict=True))
        cells = rowset.read_row(rowid, schema.value_columns, timestamp)
        row.update(zip((column.name for column in schema.value_columns), cells, strict=True))
        return row

    def get_many(self, keys: Keys, at: Moment | None) -> pa.Table:
        """Return the rows whose keys exist, in the order of `keys`."""
        timestamp = TIMESTAMP_MAX if at is None else choose_snapshot(self.store, at)
        manifest = self.store.newest()
        columns = self._key_columns(manifest, keys)
        count = len(next(iter(columns.values())))
        encoded = encode_keys(list(columns.values()), manifest.schema.key_types)
        parts: list[pa.Table] = []
        places: list[np.ndarray] = []
        for partition, tablets in partitions_to_read(self.store, manifest, timestamp):
            index = partition.tablet_index(columns, count)
            for number in np.unique(index[index >= 0]):
                rows = np.flatnonzero(index == number)
                tablet = tablet_at(self.store, tablets[number], timestamp)
                keys = encoded.take(rows)
                for table, found in self._in_tablet(manifest, tablet, keys, timestamp):
                    parts.append(table)
                    places.append(rows[found])
        fields = pa.schema([f.remove_metadata() for f in manifest.schema.arrow_schema()])
        if not parts:
            return fields.empty_table()
        order = np.argsort(np.concatenate(places), kind="stable")
        return pa.concat_tables(parts).take(pa.array(order)).cast(fields)

    def _in_tablet(
        self, manifest: Manifest, tablet: Tablet, keys: KeyArray, timestamp: int
    ) -> list[tuple[pa.Table, np.ndarray]]:
        """Return (rows, positions of their keys in `keys`) for each rowset that has any."""
        order = keys.sort_order()
        found = tablet.locate(keys.take(order), timestamp)
        results = []
        for index in np.unique(found.rowset_index[found.is_found]):
            at = np.flatnonzero(found.rowset_index == index)
            rowset = tablet.rowsets[index]
            arrays = rowset.read_rows(found.rowid[at], manifest.schema.columns, timestamp)
            table = pa.Table.from_arrays(arrays, names=manifest.schema.names)
            results.append((table, order[at]))
        return results

    def tablet_index(self, keys: Keys) -> pa.Array:
        """Return int32 per row of key columns: which tablet owns it, -1 where no range does."""
        manifest = self.store.newest()
        columns = self._key_columns(manifest, keys)
        count = len(next(iter(columns.values())))
        return pa.array(manifest.partition.tablet_index(columns, count))

    def keys_by_tablet(self, keys: Keys) -> dict[str, KeyArray]:
        """Return the distinct keys, ascending, by the id of each tablet that may have them.

        Tablets of dropped ranges are included.
        """
        manifest = self.store.newest()
        columns = self._key_columns(manifest, keys)
        count = len(next(iter(columns.values())))
        encoded = encode_keys(list(columns.values()), manifest.schema.key_types)
        found = {}
        for partition, tablets in manifest.partitions_at(0):
            index = partition.tablet_index(columns, count)
            for number in np.unique(index[index >= 0]):
                own = encoded.take(np.flatnonzero(index == number))
                own = own.take(own.sort_order())
                found[tablets[number].id] = own.take(np.flatnonzero(~own.equals_previous()))
        return found

    def _key_columns(self, manifest: Manifest, keys: Keys) -> dict[str, pa.Array]:
        table = key_table(keys, manifest.schema, self.store.name)
        columns = {}
        for column in manifest.schema.key_columns:
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
