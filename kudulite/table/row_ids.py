"""Row ids: the numbers of rows whose key is not unique, counted from 1 in each tablet.

The last id of a tablet, of its column `auto_incrementing_id`, is the highest of what two durable
places hold, read under the table's lock:

    the manifest's entry, `last_id`     at least every id in rowsets, and every id of a reservation
    the log from `log_start` on         the ids of the tablet's rows inserted there

    row write      ids follow the last one; the record that it appends makes them durable
    bulk write     each task reserves ids for its rows as it stages them, by a version of the table
                   whose entries have a higher `last_id`; rows may carry them from then on
    flush          a new superblock's entry has the last id that its log reached
    upsert         a given id above the last one becomes the last one, by its record, or reserved

A tablet's ids are never lowered: no commit, compaction, overwrite, restore or alteration changes
`last_id` but by these steps, and a backup keeps it. Ids that were reserved and never committed are
a gap.

**Invariants**: an id is given to one row of a tablet at most, also after a crash at any step: it is
above all ids that a durable place has named, and such a place names it before its row can be seen.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from kudulite.chain.manifest import Manifest, Origin, TabletEntry
from kudulite.errors import ConflictError, RowError
from kudulite.table.present import recover
from kudulite.table.publication import version_timestamp
from kudulite.table.table_log import Turn
from kudulite.table.table_store import TableStore
from kudulite.tablet.mem_stores import MemStores

ID_MAX = (1 << 63) - 1


def last_id_of(entry: TabletEntry, memory: MemStores | None) -> int:
    """Return the last id of a tablet, whose table's lock the caller has, with its memory.

    Without the lock it is the last id at some moment of the call.
    """
    return max(entry.last_id or 0, 0 if memory is None else memory.last_id)


def next_id(last: int, table: str, tablet_id: str, count: int = 1) -> int:
    """Return the first of `count` ids after `last`. Raises RowError where there are none left."""
    if last > ID_MAX - count:
        raise RowError(
            f"table {table!r}: tablet {tablet_id}: {RowError.REASON_NO_ID_LEFT}: the last id is"
            f" {last}; copy the rows into a new table",
            reason=RowError.REASON_NO_ID_LEFT,
            row_count=count,
        )
    return last + 1


def numbered(
    store: TableStore, manifest: Manifest, rows: pa.Table, creates: np.ndarray
) -> pa.Table:
    """Return the rows of a batch with an id in the place of each null one, in row order.

    `creates` bool[n]: which rows may be new, so that their tablets' last ids must not be below
    theirs. Raises as `reserve_ids`.
    """
    schema, tablets = manifest.schema, manifest.placed_tablets
    name = schema.auto_incrementing
    assert name is not None
    given = rows.column(name).combine_chunks()
    is_new = given.is_null().to_numpy(zero_copy_only=False)
    ids = given.fill_null(0).to_numpy().copy()
    columns = {key: rows.column(key).combine_chunks() for key in schema.key_names if key != name}
    index = manifest.partition.tablet_index(columns, len(ids))
    is_covered = index >= 0
    highest = np.zeros(len(tablets), np.int64)
    lifts = creates & is_covered
    np.maximum.at(highest, index[lifts], ids[lifts])
    new = np.flatnonzero(is_new & is_covered)
    counts = np.bincount(index[new], minlength=len(tablets))
    wanted = {
        tablets[n].id: (int(counts[n]), int(highest[n])) for n in np.flatnonzero(counts + highest)
    }
    firsts = reserve_ids(store, manifest.table_id, wanted)
    starts = np.array([firsts.get(entry.id, 0) for entry in tablets], np.int64)
    starts -= np.cumsum(counts) - counts
    in_order = new[np.argsort(index[new], kind="stable")]
    ids[in_order] = np.repeat(starts, counts) + np.arange(len(new))
    return rows.set_column(rows.column_names.index(name), name, pa.array(ids))


def reserve_ids(
    store: TableStore, table_id: str, wanted: Mapping[str, tuple[int, int]]
) -> dict[str, int]:
    """Reserve ids for each tablet in `wanted`: how many, all above a given id; return the first.

    Durable when it returns. Raises ConflictError, LockTimeoutError, StorageError, RowError.
    """
    newest = store.chain.newest_of(table_id)
    known = {entry.id: entry.last_id or 0 for entry in newest.tablets}
    if not any(count or given > known.get(t, 0) for t, (count, given) in wanted.items()):
        return {}  # nothing to reserve: no lock, no version

    def reserve(turn: Turn) -> dict[str, int]:
        newest = turn.newest_of(table_id)
        found = recover(store, turn)
        firsts, lasts = {}, {}
        for tablet_id, (count, given) in wanted.items():
            entry = newest.entry(tablet_id)
            if entry is None:
                raise ConflictError(
                    f"table {store.name!r}: the range of tablet {tablet_id} was dropped during a"
                    " write; write again"
                )
            last = max(given, last_id_of(entry, found.stores(store, entry)))
            firsts[tablet_id] = next_id(last, store.name, tablet_id, count)
            lasts[tablet_id] = last + count

        def build(manifest: Manifest) -> Manifest:
            lifted = manifest
            for tablet_id, last in lasts.items():
                entry = manifest.entry(tablet_id)
                assert entry is not None  # a drop takes the lock
                lifted = lifted.with_entry(replace(entry, last_id=last))
            timestamp = version_timestamp(store, manifest, turn)
            return lifted.successor(Origin("reservation of ids", timestamp, is_maintenance=True))

        store.update(build, newest, turn)
        return firsts

    return store.in_turn("ids of a write", reserve)
