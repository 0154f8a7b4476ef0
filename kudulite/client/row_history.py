"""Every version of one row that can still be read.

Versions older than the retention are omitted, except the one that was current at the ancient
history mark, because a read at the mark still returns it.
"""

from __future__ import annotations

import pyarrow as pa

from kudulite.catalog.diff_plan import entries_of_key
from kudulite.catalog.history import ancient_history_mark, tablet_at
from kudulite.catalog.table_store import TableStore
from kudulite.client.arrow_input import key_values
from kudulite.errors import SchemaError
from kudulite.model.aliases import Key
from kudulite.mvcc.hybrid_time import TIMESTAMP_MAX
from kudulite.tablet.diff_scan import CHANGE_TYPE, COMMIT_TIMESTAMP
from kudulite.tablet.key_history import KeyVersion, key_history


def row_history(store: TableStore, key: Key) -> pa.Table:
    """Return the versions of the row of `key`, the oldest first; see `Table.history`."""
    manifest = store.newest()
    schema = manifest.schema
    try:
        given = key_values(key, schema)
        encoded = schema.key_encoder(given)
    except SchemaError as error:
        raise SchemaError(f"table {store.name!r}: {error}") from error
    entries = entries_of_key(manifest, dict(zip(schema.key_names, given, strict=True)))
    tablets = [tablet_at(store, entry, TIMESTAMP_MAX) for entry in entries]
    # Asked after the tablets are open: what was collected before they were is before this.
    newest = store.newest()
    versions = key_history(tablets, encoded, schema, newest.history_start)
    versions = _held(versions, ancient_history_mark(store, newest))
    fields = [field.remove_metadata() for field in schema.arrow_schema()]
    fields += [pa.field(CHANGE_TYPE, pa.string()), pa.field(COMMIT_TIMESTAMP, pa.uint64())]
    arrays = [
        pa.concat_arrays([pa.nulls(0, column.type.arrow), *(v.cells[i] for v in versions)])
        for i, column in enumerate(schema.columns)
    ]
    arrays.append(pa.array([version.change_type for version in versions], pa.string()))
    arrays.append(pa.array([version.timestamp for version in versions], pa.uint64()))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _held(versions: list[KeyVersion], mark: int) -> list[KeyVersion]:
    """Return the versions that a legal read shows, and the deletes after the mark."""
    first = 0
    for number, version in enumerate(versions):
        if version.timestamp is None or version.timestamp <= mark:
            first = number + 1 if version.is_delete else number
    return versions[first:]
