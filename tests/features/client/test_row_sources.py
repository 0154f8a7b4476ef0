"""Whatever holds rows can be written: each source gives the same rows."""

import threading

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import kudulite

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("l", pa.list_(pa.int32()))])
ROWS = [{"id": n, "v": None if n == 3 else f"v{n}", "l": [n, None]} for n in range(20)]


@pytest.fixture
def table(core):
    return core.client().create_table("t", SCHEMA, primary_key="id")


def rows_of(table):
    return sorted(table, key=lambda row: row["id"])


def of_parquet(folder):
    pq.write_table(pa.Table.from_pylist(ROWS[:9], SCHEMA), folder / "a.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[9:], SCHEMA), folder / "b.parquet")
    return pa.dataset.dataset(folder, format="parquet")


def lazy(folder):
    polars = pytest.importorskip("polars")
    return polars.DataFrame(pa.Table.from_pylist(ROWS, SCHEMA)).lazy()


def delta(folder):
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(folder / "d", pa.Table.from_pylist(ROWS, SCHEMA))
    return deltalake.DeltaTable(folder / "d")


@pytest.mark.parametrize(
    "source",
    [
        of_parquet,
        lambda folder: of_parquet(folder).scanner(),
        lazy,
        delta,
        lambda folder: (row for row in ROWS),
        lambda folder: iter([pa.Table.from_pylist(ROWS, SCHEMA)]),
        lambda folder: (b for b in pa.Table.from_pylist(ROWS, SCHEMA).to_batches(max_chunksize=7)),
        lambda folder: pa.Table.from_pylist(ROWS, SCHEMA).to_reader(),
    ],
    ids=["dataset", "scanner", "LazyFrame", "DeltaTable", "dicts", "tables", "batches", "reader"],
)
def test_every_source_gives_its_rows(table, tmp_path, source):
    assert table.upsert(source(tmp_path)).inserted == len(ROWS)
    assert rows_of(table) == ROWS


def test_one_dict_is_one_row(table):
    table.insert([ROWS[0]])
    table.upsert({"id": 1, "v": None})
    table.upsert({"id": [2, 3], "v": ["a", "b"]})
    assert rows_of(table) == [
        ROWS[0],
        {"id": 1, "v": None, "l": None},
        {"id": 2, "v": "a", "l": None},
        {"id": 3, "v": "b", "l": None},
    ]
    table.update({"id": 1, "v": "x"})
    table.delete({"id": 0})
    assert [row["v"] for row in rows_of(table)] == ["x", "a", "b"]


def test_a_source_without_rows_writes_nothing(table):
    for empty in (iter([]), iter([SCHEMA.empty_table()]), [], {"id": []}):
        assert table.upsert(empty).inserted == 0
    assert len(table) == 0


def test_an_error_in_a_generator_leaves_the_table_as_it_was(table):
    def rows():
        yield from ROWS
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        table.upsert(rows())
    with pytest.raises(kudulite.SchemaError, match="generator"):
        table.upsert(number for number in range(3))
    assert len(table) == 0


def test_a_table_is_created_with_its_rows_or_not_at_all(core):
    client = core.client()
    table = client.create_table("new", data=pa.Table.from_pylist(ROWS, SCHEMA), primary_key="id")
    assert rows_of(table) == ROWS and client.table("new").id == table.id
    reader = pa.Table.from_pylist(ROWS, SCHEMA).to_reader()
    assert len(client.create_table("streamed", data=reader, primary_key="id")) == len(ROWS)
    assert len(client.create_table("rows", data=(r for r in ROWS), primary_key="id")) == len(ROWS)
    with pytest.raises(kudulite.RowError):
        client.create_table("twice", data=ROWS + ROWS[:1], primary_key="id")
    with pytest.raises(kudulite.TableExistsError):
        client.create_table("new", data=ROWS[:1], primary_key="id")
    with pytest.raises(kudulite.SchemaError, match="give a schema, or data"):
        client.create_table("none")
    assert "twice" not in client and "none" not in client and len(client["new"]) == len(ROWS)


def test_a_table_that_may_be_there_is_opened(core):
    client = core.client()
    first = client.create_table("t", SCHEMA, primary_key="id", exist_ok=True)
    first.insert(ROWS[:1])
    again = client.create_table("t", SCHEMA, primary_key="id", exist_ok=True, data=ROWS[1:])
    assert again.id == first.id and len(again) == 1
    with pytest.raises(kudulite.OptionError, match="exist_ok=True"):
        client.create_table("t", SCHEMA, primary_key="id", if_not_exists=True)


def test_many_that_create_one_table_get_the_same_one(core):
    client, ids = core.client(), []

    def create(number):
        row = pa.Table.from_pylist([{"id": number}], SCHEMA)
        table = client.create_table("t", data=row, primary_key="id", exist_ok=True)
        ids.append((table.id, len(table)))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 6 and len(set(ids)) == 1 and ids[0][1] == 1
