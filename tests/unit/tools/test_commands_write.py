"""Commands that write: what `scan` prints can be loaded, and a refused file changes nothing."""

import datetime
import json

import pyarrow as pa
import pytest

import kudulite
from tests.support.command_line import error, output, value
from tests.support.tables.core_tables import stored
from tests.support.tables.typed_tables import ARRAYS, COLUMNS

UTC = datetime.UTC


@pytest.fixture
def typed(tmp_path) -> kudulite.Table:
    """A table with a column of every type: extremes, nulls, and texts that look like nothing."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    columns = [kudulite.column("id", kudulite.int32)]
    columns += [kudulite.column(name, kind) for name, kind, _ in COLUMNS]
    table = client.create_table("typed", kudulite.schema(columns, "id"))
    rows = [{"id": 0}]
    for number in range(1, 7):
        cells = {name: values[number % len(values)] for name, _, values in COLUMNS}
        rows.append({"id": number, **cells})
    table.insert(rows)
    return table


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_what_scan_prints_can_be_loaded(typed: kudulite.Table, tmp_path, kind: str):
    """Every type comes back exactly; CSV has no bytes that are no text, only Parquet all arrays."""
    file = tmp_path / f"rows.{kind}"
    left_out = set() if kind == "parquet" else {name for name, _, _ in ARRAYS}
    left_out |= {"raw"} if kind == "csv" else set()
    columns = [name for name in typed.schema.names if name not in left_out]
    arguments = ["--columns", ",".join(columns), "--format", kind, "--output", file]
    output("scan", typed.path, *arguments)
    copy = tmp_path / "root" / "copy"
    typed.copy_to(copy)
    kudulite.open_table(copy).truncate()
    found = value("load", copy, file)
    assert (found["inserted"], found["updated"]) == (7, 0)
    expected = typed.scan(columns=columns, ordered=True).to_arrow()
    again = kudulite.open_table(copy).scan(columns=columns, ordered=True).to_arrow()
    # As bits: NaN is equal to itself, and -0.0 is not 0.0.
    assert str(again.to_pylist()) == str(expected.to_pylist())


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_what_scan_prints_makes_a_new_table(tmp_path, kind: str):
    """Times keep their type, with digits below a second and without; so do days and texts."""
    fields = [
        pa.field("id", pa.int64(), nullable=False),
        ("seen", pa.timestamp("us", "UTC")),
        ("whole", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("text", pa.string()),
    ]
    client = kudulite.connect(tmp_path, background_maintenance=False)
    table = client.create_table("t", pa.schema(fields), primary_key="id")
    seen, whole = 1_700_000_000_123_456, 1_700_000_000_000_000
    rows = [(1, seen, whole, seen, 20_000, "2026"), (2, None, None, None, None, None)]
    table.insert([dict(zip(table.schema.names, row, strict=True)) for row in rows[1:]])
    table.insert(pa.table([[value] for value in rows[0]], schema=table.arrow_schema))
    file = tmp_path / f"rows.{kind}"
    output("scan", table.path, "--format", kind, "--output", file)
    output("load", tmp_path / "again", file, "--primary-key", "id")
    again = client.table("again")
    expected = [("text", "int64" if kind == "csv" else "string")]  # CSV has no types
    types = [(column.name, str(column.type)) for column in table.schema]
    assert [(c.name, str(c.type)) for c in again.schema] == [*types[:-1], *expected]
    assert (
        again.scan(types and [n for n, _ in types[:-1]], ordered=True).to_pylist()
        == table.scan([n for n, _ in types[:-1]], ordered=True).to_pylist()
    )


def test_load_makes_a_table_of_its_first_file(tmp_path):
    """With its key and partitions; several files are one commit."""
    for number in range(2):
        lines = [f"{key},host-{key % 3},{key / 4}" for key in range(number * 50, number * 50 + 50)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["id,host,load", *lines]))
    path, files = tmp_path / "db" / "t", [tmp_path / "0.csv", tmp_path / "1.csv"]
    ranges = json.dumps({"columns": ["id"], "bounds": [[0, 60], [60, 100]]})
    layout = ["--hash-partitions", "host:2", "--range-partitions", ranges]
    text = output("load", path, *files, "--primary-key", "id, host", *layout)
    table = kudulite.open_table(path)
    assert text == f"100 inserted, at {table.versions()[0].timestamp}\n"
    assert (table.tablet_count, table.schema.key_names) == (4, ["id", "host"])
    assert table.get((99, "host-0")) == {"id": 99, "host": "host-0", "load": 24.75}
    assert "key already present" in error("load", path, *files)
    assert "exists already" in error("load", path, files[0], "--primary-key", "id")
    assert [one.inserted for one in table.versions() if one.inserted] == [100]
    twice = error("load", tmp_path / "db" / "new", *files, files[0], "--primary-key", "id")
    assert "key already present" in twice and not (tmp_path / "db" / "new").exists()


def test_upsert_and_delete_take_the_columns_that_a_file_has(tmp_path):
    """A file of keys deletes; what is absent is an error unless it is ignored."""
    client = kudulite.connect(tmp_path / "db", background_maintenance=False)
    schema = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.int8())])
    table = client.create_table("t", schema, primary_key="k")
    table.insert({"k": [1, 2, 3], "a": ["x", "y", "z"], "b": [1, 2, 3]})
    file = tmp_path / "rows.jsonl"
    file.write_text('{"k": 2, "b": 20}\n{"k": 4, "b": null}\n')
    assert output("upsert", table.path, file).startswith("1 inserted, 1 updated, at ")
    assert stored(table) == [(1, "x", 1), (2, "y", 20), (3, "z", 3), (4, None, None)]
    file.write_text('{"k": 1, "other": true}\n{"k": 9}\n')
    assert "key not found" in error("delete", table.path, file)
    found = value("delete", table.path, file, "--ignore")
    assert (found["deleted"], found["ignored"]) == (1, 1)
    empty = tmp_path / "empty.csv"
    empty.write_text("k,a\n")
    assert output("upsert", table.path, empty).startswith("nothing changed, at ")
    assert not list((table.path / "writes").iterdir())


def test_a_snapshot_replaces_what_differs(tmp_path):
    """Of several files; equal rows stay, and absent ones are deleted."""
    client = kudulite.connect(tmp_path / "db", background_maintenance=False)
    schema = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.int8())])
    table = client.create_table("t", schema, primary_key="k")
    table.insert({"k": [1, 2, 3], "a": ["x", "y", None], "b": [1, 2, 3]})
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text("k,a,b\n1,x,1\n2,y,20\n")
    two.write_text("k,a,b\n4,z,4\n")
    moment, skip = table.current_timestamp(), ["--unchanged", "skip"]
    text = output("load", table.path, one, two, "--overwrite", *skip)
    assert text.startswith("1 inserted, 1 updated, 1 deleted, 1 unchanged, at ")
    assert sorted(row["k"] for row in table.changes(moment).to_pylist()) == [2, 3, 4]
    assert stored(table) == [(1, "x", 1), (2, "y", 20), (4, "z", 4)]
    assert output("load", table.path, two, "--overwrite").startswith("1 inserted, at ")
    assert stored(table) == [(4, "z", 4)]
    assert "is for --overwrite" in error("load", table.path, one, *skip)
    new = tmp_path / "db" / "new"
    assert "is for a table that exists" in error(
        "load", new, one, "--overwrite", "--primary-key", "k"
    )


def test_what_cannot_be_read_is_named(tmp_path):
    """A file of another kind, of no kind, and options that do not fit."""
    client = kudulite.connect(tmp_path / "db", background_maintenance=False)
    table = client.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    bad = tmp_path / "bad.parquet"
    bad.write_text("k\n1\n")
    assert f"cannot read {bad}" in error("load", table.path, bad)
    assert "give --format csv, json or parquet" in error("load", table.path, __file__)
    assert "needs --primary-key" in error("load", table.path, bad, "--hash-partitions", "k:2")
    new = tmp_path / "db" / "new"
    wrong = [("--hash-partitions", "k", "expected `a:4`"), ("--range-partitions", "{", "JSON")]
    for option, text, message in wrong:
        arguments = ["--format", "csv", "--primary-key", "k", option, text]
        assert message in error("load", new, bad, *arguments)
    (tmp_path / "rows.csv").write_text("k\nx\n")
    assert "rows.csv" in error("upsert", table.path, tmp_path / "rows.csv")
    assert table.scan().count() == 0 and not new.exists()


@pytest.mark.parametrize("sessions", [False, True])
def test_loadgen_stops_by_itself(tmp_path, sessions: bool):
    """After its rows or its time, at its rate; the same seed draws the same keys."""
    counts = []
    for name in ("a", "b"):
        arguments = ["--rows", 700, "--batch-rows", 300, "--keys", 500, "--seed", 7]
        found = value("loadgen", tmp_path / name, *arguments, *(["--sessions"] if sessions else []))
        assert (found["row_count"], found["write_count"]) == (700, 3)
        table = kudulite.open_table(tmp_path / name)
        assert found["table_row_count"] == table.scan().count() <= 500
        counts.append({row["id"] for row in table.scan(columns=["id"]).to_pylist()})
    assert counts[0] == counts[1]
    limited = value("loadgen", tmp_path / "a", "--seconds", 0.5, "--rate", 200, "--batch-rows", 10)
    assert 10 <= limited["row_count"] <= 110 and 0.3 < limited["seconds"] < 30
    assert "rows_per_second" in output("loadgen", tmp_path / "a", "--rows", 1)


def test_loadgen_writes_no_more_than_its_rate_in_its_time(tmp_path):
    """A write has fewer rows than --batch-rows where the rate does not allow so many."""
    found = value("loadgen", tmp_path / "a", "--seconds", 0.5, "--rate", 100, "--batch-rows", 1000)
    assert found["row_count"] == 50
