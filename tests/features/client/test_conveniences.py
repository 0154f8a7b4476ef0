"""Short words for what one wants first: len, head, for, a Parquet file, a pickle."""

import itertools
import os
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite.errors import OptionError, StorageError, TableNotFoundError
from kudulite.reads import scan as scan_module

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])


@pytest.fixture
def table(tmp_path) -> kudulite.Table:
    """Rows in base data, in deltas and in the log of two tablets."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    made = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[("k", 2)])
    write = made.new_bulk_write("insert")
    rows = pa.table({"k": range(3000), "s": ["a"] * 3000, "t": [0] * 3000})
    write.commit([write.stage([rows.cast(SCHEMA)])])
    made.upsert([{"k": 1, "s": None}])
    made.upsert([{"k": 5000, "s": "z"}])
    return made


def test_the_length_of_a_table_is_its_number_of_rows(table):
    """An empty table is true nevertheless: `if table:` asks whether there is one."""
    assert len(table) == table.live_row_count == 3001
    table.truncate()
    assert len(table) == 0 and table


@pytest.mark.parametrize("n", [0, 1, 7, 5000])
def test_head_returns_that_many_rows_of_the_table(table, n):
    """Or all, if there are fewer; five where no number is given."""
    found = table.head(n)
    assert found.num_rows == min(n, 3001) and found.schema == table.arrow_schema
    assert {row["k"] for row in found.to_pylist()} <= {*range(3000), 5000}
    assert table.head().num_rows == 5


def test_head_refuses_a_negative_number(table):
    """As a limit of a scan."""
    with pytest.raises(OptionError, match="below 0"):
        table.head(-1)


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"limit": 1500}, {"columns": ["s"]}])
def test_a_scan_yields_its_rows_as_dicts(table, options):
    """The same as `to_pylist`, each time anew."""
    scan = table.scan(**options)
    assert list(scan) == scan.to_pylist() == list(scan)
    assert list(table.scan(where=table["k"] < 0)) == []


def test_changes_yield_their_rows_as_dicts(table):
    """With the type and the time of each."""
    start = table.current_timestamp()
    stamp = table.delete([{"k": 2}]).timestamp
    (row,) = table.changes(start)
    assert (row["k"], row["_change_type"], row["_commit_version"]) == (2, "delete", stamp)


def test_an_iteration_reads_as_far_as_it_is_asked(table, monkeypatch):
    """The first rows need no more than the first batch."""
    read = []

    def batches(self):
        for start in range(0, 4000, 1000):
            read.append(start)
            yield pa.record_batch({"k": range(start, start + 1000)})

    monkeypatch.setattr(scan_module.RowScan, "to_batches", batches)
    assert [row["k"] for row in itertools.islice(table.scan(), 3)] == [0, 1, 2]
    assert read == [0]


def test_a_scan_is_written_to_parquet(table, tmp_path):
    """All its rows and types; a file that is there is replaced, and nothing else is left."""
    path = tmp_path / "out" / "rows.parquet"
    path.parent.mkdir()
    for scan in (table.scan(ordered=True), table.scan(["s", "k"], where=table["k"] > 10)):
        assert scan.to_parquet(path) == scan.count()
        assert pq.read_table(path).equals(scan.to_arrow())
    assert table.scan(where=table["k"] < 0).to_parquet(str(path)) == 0
    assert pq.read_table(path).schema == table.arrow_schema
    assert os.listdir(path.parent) == ["rows.parquet"]


def test_small_batches_share_a_row_group(table, tmp_path, monkeypatch):
    """A table of many small rowsets gives a file that reads well."""
    path = tmp_path / "rows.parquet"
    schema = table.scan(["k"]).schema
    batches = [pa.record_batch([pa.array(range(at, at + 10))], schema) for at in range(0, 100, 10)]
    monkeypatch.setattr(scan_module, "PARQUET_GROUP_ROWS", 35)
    monkeypatch.setattr(scan_module.RowScan, "to_batches", lambda self: iter(batches))
    assert table.scan(["k"]).to_parquet(path) == 100
    meta = pq.ParquetFile(path).metadata
    groups = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
    assert groups == [40, 40, 20]
    assert pq.read_table(path)["k"].to_pylist() == [*range(100)]


def test_changes_are_written_to_parquet(table, tmp_path):
    """With the preimages, as rows."""
    start = table.current_timestamp()
    table.upsert([{"k": 1, "s": "b"}])
    changes = table.changes(start, images="both")
    assert changes.to_parquet(tmp_path / "c.parquet") == 2
    assert pq.read_table(tmp_path / "c.parquet").to_pylist() == changes.to_pylist()


def test_a_failed_export_leaves_the_old_file(table, tmp_path, monkeypatch):
    """And no part of the new one."""
    path = tmp_path / "out" / "rows.parquet"
    path.parent.mkdir()
    table.scan().to_parquet(path)
    before, batch = path.read_bytes(), table.head().to_batches()[0]

    def fail(self):
        yield batch
        raise StorageError(5, "lost disk")

    monkeypatch.setattr(scan_module.RowScan, "to_batches", fail)
    with pytest.raises(StorageError, match="lost disk"):
        table.scan().to_parquet(path)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["rows.parquet"]


def test_an_export_stays_outside_tables_and_folders(table, tmp_path):
    """A table's folder has the files of the table only."""
    for inside in (table.path, table.path / "rows.parquet", table.path / "tablet" / "a" / "b"):
        with pytest.raises(OptionError, match="is a place inside the table"):
            table.scan().to_parquet(inside)
    with pytest.raises(OptionError, match="is a folder; give the path of a file"):
        table.scan().to_parquet(tmp_path)
    with pytest.raises(OptionError, match="without columns has no Parquet file; use count"):
        table.scan(columns=[]).to_parquet(tmp_path / "x")
    with pytest.raises(StorageError):
        table.scan().to_parquet(tmp_path / "absent" / "x")


def test_a_table_is_pickled_by_its_path(table):
    """Another process opens it again; a table that is gone is named."""
    content = pickle.dumps(table)
    again = pickle.loads(content)
    assert (again.path, again.id, len(again)) == (table.path, table.id, 3001)
    again.upsert([{"k": 6000}])
    assert table.get(6000) is not None
    table.path.rename(table.path.with_name("other"))
    with pytest.raises(TableNotFoundError):
        pickle.loads(content)


def test_a_schema_is_pickled(table):
    """Also after its encoder of keys was used."""
    schema = table.schema
    assert schema.key_encoder((1,)) and schema.names
    again = pickle.loads(pickle.dumps(schema))
    assert again == schema and again.key_encoder((1,)) == schema.key_encoder((1,))
