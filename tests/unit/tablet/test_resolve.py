"""Resolving a write: cases of mixed batches that random runs have found, and rows in chunks."""

import numpy as np
import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import RowError
from kudulite.table.environment import default_environment
from kudulite.table.table_store import TableStore
from kudulite.tablet import resolve
from kudulite.tablet.row_gather import RowGather
from kudulite.writes import batch_pieces, stager
from tests.support.tables.core_tables import CoreTables, stored


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Key k; a is nullable, d has a default, r is required."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("a", kudulite.int32),
        kudulite.column("d", kudulite.int32, default=7),
        kudulite.column("r", kudulite.int32, nullable=False),
    ]
    table = core.client().create_table("t", kudulite.schema(columns, "k"))
    table.insert([{"k": k, "a": k, "d": k, "r": k} for k in range(4)])
    return table


def test_replaced_rows_beside_changed_ones_take_defaults(table):
    """Delete and insert of one key in a batch sets columns that the batch does not provide."""
    table.apply(
        [
            {"op": "delete", "k": 1, "r": 0},
            {"op": "insert", "k": 1, "r": 10},
            {"op": "update", "k": 2, "r": 20},
        ]
    )
    assert stored(table) == [(0, 0, 0, 0), (1, None, 7, 10), (2, 2, 2, 20), (3, 3, 3, 3)]


def test_a_row_deleted_at_last_needs_no_required_value(table):
    """Delete, insert, delete leaves nothing that could lack a value."""
    rows = [{"op": "delete", "k": 1}, {"op": "insert", "k": 1}, {"op": "delete", "k": 1}]
    assert table.apply(rows).deleted == 2
    assert [row[0] for row in stored(table)] == [0, 2, 3]


def test_a_replaced_row_needs_its_required_value(table):
    """Delete and insert without the value of a NOT NULL column is refused like an insert."""
    with pytest.raises(RowError, match=r"'t'.*'r'.*no value provided.*k\) = 1"):
        table.apply([{"op": "delete", "k": 1}, {"op": "insert", "k": 1}])


@pytest.mark.parametrize("operation", ["upsert", "upsert_ignore"])
def test_a_key_only_upsert_of_a_present_row_leaves_no_trace(table, operation):
    """It counts as an update, but publishes no version."""
    version = table.version
    result = getattr(table, operation)(pa.table({"k": pa.array([1, 2], pa.int32())}))
    assert (result.updated, table.version, len(stored(table))) == (2, version, 4)


def test_all_null_rows_under_ignore_null_leave_no_trace(table):
    """Null leaves each cell alone, so nothing is written."""
    version = table.version
    rows = pa.table({"k": pa.array([1], pa.int32()), "a": pa.array([None], pa.int32())})
    assert table.update(rows, ignore_null=True).updated == 1
    assert table.version == version


@pytest.mark.parametrize("gathered_rows", [1, 3, 100])
def test_rowsets_get_the_columns_that_their_own_rows_set(table, monkeypatch, gathered_rows):
    """Cells of a few rowsets are gathered at once, and cut by rowset: keys 0, 10 and 20 differ."""
    monkeypatch.setattr(resolve, "_GATHERED_ROWS", gathered_rows)
    for first in (10, 20):
        table.insert([{"k": k, "a": k, "d": k, "r": k} for k in range(first, first + 4)])
    rows = {"k": [21, 0, 10, 12, 3, 20], "a": [5, 1, None, None, None, None]}
    rows |= {"d": [None, None, 6, None, None, None], "r": [None, None, None, 8, None, 9]}
    types = dict.fromkeys(rows, pa.int32())
    table.update(pa.table(rows, schema=pa.schema(types)), ignore_null=True)
    changed = {0: (1, 0, 0), 10: (10, 6, 10), 12: (12, 12, 8), 20: (20, 20, 9), 21: (5, 21, 21)}
    assert stored(table) == [
        (k, *changed.get(k, (k, k, k))) for first in (0, 10, 20) for k in range(first, first + 4)
    ]
    store = TableStore(table.path, default_environment())
    (entry,) = store.newest().tablets
    redo = [meta.redo[0].update_counts for meta in store.tablet(entry).superblock.rowsets]
    ids = {name: table.schema.column(name).id for name in "adr"}
    assert sorted(redo, key=len) == [
        {ids["a"]: 1},
        {ids["d"]: 1, ids["r"]: 1},
        {ids["a"]: 1, ids["r"]: 1},
    ]


def in_chunks(table: pa.Table, bounds: list[int]) -> pa.Table:
    """The same rows, cut at the bounds."""
    ends = [*bounds, table.num_rows]
    return pa.concat_tables(
        table.slice(start, stop - start) for start, stop in zip([0, *bounds], ends, strict=True)
    )


@pytest.mark.parametrize("seed", range(8))
def test_rows_gathered_from_chunks_are_those_of_the_joined_table(seed):
    """Any rows in any order, of each layout of values, with nulls."""
    random = np.random.default_rng(seed)
    count = 60
    is_null = random.random(count) < 0.3
    rows = pa.table(
        {
            "number": pa.array(random.integers(0, 9, count)),
            "real": pa.array(random.random(count), mask=is_null),
            "flag": pa.array(random.random(count) < 0.5),
            "text": pa.array(["x" * n for n in range(count)], mask=is_null),
            "list": pa.array([[n] * (n % 4) for n in range(count)], mask=is_null),
        }
    )
    gather = RowGather(in_chunks(rows, sorted(random.integers(0, count, 4).tolist())))
    for numbers in (
        random.permutation(count)[:40],
        np.sort(random.permutation(count)[:20]),
        random.integers(0, count, 10),
        np.arange(5, 50),
        np.arange(0),
    ):
        for name in rows.column_names:
            expected = rows.column(name).combine_chunks().take(pa.array(numbers, pa.int64()))
            assert gather.take(name, numbers).equals(expected), (name, numbers)


@pytest.mark.parametrize("options", [{}, {"ignore_null": True}, {"ordering_column": "r"}])
def test_a_write_of_a_table_in_chunks_is_that_of_one_chunk(core, table, monkeypatch, options):
    """Inserted and updated rows, defaults, nulls that leave cells alone, and mixed operations."""
    monkeypatch.setattr(stager, "CHUNK_ROWS_MIN", 1)
    monkeypatch.setattr(batch_pieces, "STAGE_BYTES_MAX", 16)
    random = np.random.default_rng(3)
    keys = random.integers(0, 30, 50)
    rows = pa.table(
        {
            "k": pa.array(keys, pa.int32()),
            "a": pa.array(keys, pa.int32(), mask=random.random(50) < 0.4),
            "r": pa.array(random.integers(0, 1000, 50), pa.int32()),
        }
    )
    other = core.client("other").create_table("t", table.schema)
    other.insert([{"k": k, "a": k, "d": k, "r": k} for k in range(4)])
    if "ordering_column" in options:
        kinds = pa.array(random.choice(["upsert", "delete"], 50))
        rows = rows.append_column("op", pa.chunked_array([kinds]))
        options = {**options, "operation_column": "op"}
        table.apply(rows, **options)
        other.apply(in_chunks(rows, [7, 7, 20, 41]), **options)
    else:
        table.upsert(rows, **options)
        other.upsert(in_chunks(rows, [7, 7, 20, 41]), **options)
    assert stored(other) == stored(table)
