"""Which rows changed in a window: those with an entry in it, each with its newest moment."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kudulite.delta.delta_file import OP_DELETE, OP_REINSERT, OP_UPDATE, DeltaColumn, DeltaRows
from kudulite.delta.delta_history import OneRowSource, changed_rows, changes_within
from kudulite.delta.delta_mem_store import DeltaMemStore

KNOWN, DROPPED = 1, 2
OPS = (OP_UPDATE, OP_DELETE, OP_REINSERT)


def store(entries: list[tuple[int, int, int, int | None]]) -> DeltaMemStore:
    """Entries (timestamp, row id, op, the column that an UPDATE sets) in memory."""
    entries = sorted(entries, key=lambda entry: entry[0])
    columns = {
        column_id: DeltaColumn(
            pa.array([0] * len(entries), pa.int64()),
            np.array([op != OP_DELETE and column == column_id for _, _, op, column in entries]),
        )
        for column_id in (KNOWN, DROPPED)
    }
    made = DeltaMemStore()
    made.append(
        DeltaRows(
            np.array([entry[1] for entry in entries], np.int64),
            np.array([entry[2] for entry in entries], np.uint8),
            columns,
            np.array([entry[0] for entry in entries], np.uint64),
        )
    )
    return made


ENTRIES = st.lists(
    st.tuples(
        st.integers(1, 9),
        st.integers(0, 4),
        st.sampled_from(OPS),
        st.sampled_from([KNOWN, DROPPED, None]),
    ),
    max_size=12,
)


@given(st.lists(ENTRIES, max_size=3), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_a_row_changed_when_an_entry_of_it_is_in_the_window(parts, first, last, not_at):
    """Updates of columns that the table has not, and changes at one moment, do not count."""
    start, end = min(first, last), max(first, last)
    sources = [store(entries).snapshot() for entries in parts]
    found = changed_rows(sources, start, end, {KNOWN}, not_at)
    expected: dict[int, int] = {}
    for stamp, rowid, op, column in (entry for entries in parts for entry in entries):
        is_change = op != OP_UPDATE or column == KNOWN
        if is_change and start < stamp <= end and stamp != (not_at or None):
            expected[rowid] = max(stamp, expected.get(rowid, 0))
    assert dict(zip(found.rowids.tolist(), found.timestamps.tolist(), strict=True)) == expected
    assert found.rowids.tolist() == sorted(expected)
    probes = np.array([4, 0, 2, 2, 3, 1], np.int64)
    assert found.newest_of(probes).tolist() == [expected.get(row, 0) for row in probes.tolist()]


@given(ENTRIES, st.integers(0, 4))
def test_one_row_of_a_source_has_the_entries_of_that_row(entries, rowid):
    """In the order of the source, with the same cells."""
    source = store(entries).snapshot()
    row = OneRowSource(source, rowid)
    at = np.flatnonzero(source.rowids == rowid)
    assert len(row) == len(at)
    assert row.ops.tolist() == source.ops[at].tolist()
    assert row.timestamps().tolist() == source.timestamps()[at].tolist()
    if len(row):
        assert (row.meta.timestamp_min, row.meta.timestamp_max) == (
            int(source.timestamps()[at].min()),
            int(source.timestamps()[at].max()),
        )
        cells, whole = row.column(KNOWN), source.column(KNOWN)
        assert cells.is_set.tolist() == whole.is_set[at].tolist()
        own, stamps = changes_within(source, 0, 9, {KNOWN})
        assert changes_within(row, 0, 9, {KNOWN})[1].tolist() == stamps[own == rowid].tolist()
        for column_id in (KNOWN, DROPPED):
            count = np.count_nonzero(source.column(column_id).is_set[at])
            assert row.meta.update_counts.get(column_id, 0) == count
        assert row.meta.delete_count == np.count_nonzero(row.ops == OP_DELETE)
