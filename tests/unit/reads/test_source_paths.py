"""Files as sources: their rows, in one commit, or an error that says what to give."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite.errors import ColumnNotFoundError, OptionError, SchemaError

ROWS = [{"id": n, "v": None if n % 3 == 0 else f"v{n}"} for n in range(10)]


@pytest.fixture
def table(core) -> kudulite.Table:
    """An empty table (id int32 | v string, w double with the default 7)."""
    columns = [
        kudulite.column("id", "int32"),
        kudulite.column("v", "string"),
        kudulite.column("w", "double", default=7.0),
    ]
    return core.client().create_table("t", kudulite.schema(columns, "id"))


def csv(path: Path, rows=ROWS) -> Path:
    """A CSV file of rows."""
    lines = [f"{row['id']},{row['v'] or ''}" for row in rows]
    path.write_text("\n".join(["id,v", *lines]))
    return path


def parquet(path: Path, rows=ROWS) -> Path:
    """A Parquet file of rows."""
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def rows_of(table: kudulite.Table) -> list[dict[str, object]]:
    """The rows (id, v) in the order of the key."""
    return table.scan(["id", "v"], ordered=True).to_pylist()


def test_a_file_of_each_format_is_a_source(table, tmp_path):
    lines = "\n".join(map(json.dumps, ROWS))
    (tmp_path / "lines.jsonl").write_text(lines)
    (tmp_path / "array.json").write_text(json.dumps(ROWS))
    sources = [
        csv(tmp_path / "a.csv"),
        str(csv(tmp_path / "b.csv")),
        tmp_path / "lines.jsonl",
        tmp_path / "array.json",
        parquet(tmp_path / "a.parquet"),
    ]
    for source in sources:
        assert table.overwrite(source).inserted + table.live_row_count == 2 * len(ROWS)
        assert rows_of(table) == ROWS
        table.truncate()


def test_several_files_are_one_commit(table, tmp_path):
    """Of several formats; paths, a pattern, a folder."""
    (tmp_path / "in").mkdir()
    paths = [
        csv(tmp_path / "in" / "a.csv", ROWS[:4]),
        parquet(tmp_path / "in" / "b.parquet", ROWS[4:]),
    ]
    for source in (paths, [str(p) for p in paths], str(tmp_path / "in" / "*"), tmp_path / "in"):
        before = table.newest_change()
        assert table.upsert(source).timestamp > before
        assert table.changes(before).count() == len(ROWS)
        assert rows_of(table) == ROWS
    (tmp_path / "in" / "_SUCCESS").write_text("")
    (tmp_path / "in" / ".part.crc").write_text("")
    assert table.upsert(tmp_path / "in").updated == len(ROWS)


def test_a_key_that_two_files_have_is_refused_and_nothing_is_written(table, tmp_path):
    csv(tmp_path / "a.csv", ROWS[:4])
    csv(tmp_path / "b.csv", ROWS[3:])
    with pytest.raises(kudulite.RowError, match="twice|batch"):
        table.insert([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert len(table) == 0


def test_a_json_object_sets_the_columns_whose_keys_it_has(table, tmp_path):
    table.insert([{"id": 1, "v": "old", "w": 1.0}, {"id": 2, "v": "old", "w": 2.0}])
    (tmp_path / "a.json").write_text('{"id": 1, "v": null} {"id": 2, "w": null} {"id": 3}')
    table.upsert(tmp_path / "a.json")
    assert table.scan(ordered=True).to_pylist() == [
        {"id": 1, "v": None, "w": 1.0},
        {"id": 2, "v": "old", "w": None},
        {"id": 3, "v": None, "w": 7.0},
    ]


def test_a_delete_uses_the_keys_of_a_file(table, tmp_path):
    """Whatever else is in it."""
    table.insert(csv(tmp_path / "a.csv"))
    (tmp_path / "gone.json").write_text('{"id": 1, "why": {"by": "hand"}}')
    assert table.delete(tmp_path / "gone.json").deleted == 1
    assert table.delete(csv(tmp_path / "b.csv", ROWS[4:])).deleted == 6
    assert [row["id"] for row in rows_of(table)] == [0, 2, 3]
    assert table.get_many(tmp_path / "a.csv")["id"].to_pylist() == [0, 2, 3]


def test_a_new_table_has_the_types_that_all_rows_show(core, tmp_path):
    (tmp_path / "a.csv").write_text("id,code,n\n1,007,1.5\n2,100,\n")
    table = core.client().create_table("t", data=tmp_path / "a.csv", primary_key="id")
    assert {c.name: str(c.type) for c in table.schema} == {
        "id": "int64", "code": "string", "n": "double",
    }  # fmt: skip
    assert table.scan(ordered=True).to_pylist() == [
        {"id": 1, "code": "007", "n": 1.5},
        {"id": 2, "code": "100", "n": None},
    ]
    empty = core.client().create_table("e", str(tmp_path / "a.csv"), primary_key="id")
    assert empty.schema == table.schema and len(empty) == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nothing.csv", "there is no such file; a text where rows are expected is the path"),
        ("*.parquet", "no file has a name of this pattern"),
        ("s3://bucket/a.parquet", r"folders of this machine; .* pyarrow.dataset"),
        (["a.csv", "nothing.csv"], "'nothing.csv': there is no such file"),
        ("a.txt", "unknown file name ending; name it .csv, .json or .parquet, or read"),
        ("empty", "is a folder without files"),
        ("hive", r"has folders in it, such as day=1; .* partitioning=\"hive\""),
        ("delta", "is a Delta table; give deltalake.DeltaTable"),
        ("lance", "is a Lance dataset"),
        ("db/t", r"is a kudulite table; give kudulite.open_table\('db/t'\)"),
    ],
)
def test_what_is_no_file_of_rows_is_refused(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    for folder in ("empty", "hive/day=1", "delta/_delta_log", "lance/_versions"):
        (tmp_path / folder).mkdir(parents=True)
    csv(tmp_path / "a.csv"), csv(tmp_path / "a.txt")
    parquet(tmp_path / "delta" / "part.parquet")
    table = kudulite.connect("db").create_table("t", data=ROWS[1:2], primary_key="id")
    with pytest.raises(OptionError, match=message):
        table.upsert(source)
    assert len(table) == 1


def test_a_bad_row_names_the_file_and_the_row(table, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,v\n1,x\nz,y\n")
    with pytest.raises(OptionError, match=r"a.csv: column 'id', row 2: 'z' is no int32"):
        table.insert(path)
    path.write_text("id,v,new\n1,x,2\n")
    with pytest.raises(ColumnNotFoundError, match="no column 'new'"):
        table.insert(path)
    path.write_bytes(b"id,v\n1,\xff\n")
    with pytest.raises(OptionError, match=r"write it as UTF-8, or read the file with pandas"):
        table.insert(path)
    (tmp_path / "b.csv").write_text("id\n3\n")
    with pytest.raises(OptionError, match=r"b.csv has no column 'v', .* by a call of their own"):
        table.insert([csv(tmp_path / "c.csv"), tmp_path / "b.csv"])
    assert len(table) == 0


def test_schema_evolution_adds_the_columns_of_a_file(table, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,v,new\n1,x,2\n")
    assert table.insert(path, schema_evolution=True).inserted == 1
    assert table.get(1) == {"id": 1, "v": "x", "w": 7.0, "new": 2}
    parquet(tmp_path / "b.parquet", [{"id": 1, "more": "y"}])
    table.upsert(tmp_path / "b.parquet", schema_evolution=True)
    assert table.get(1) == {"id": 1, "v": "x", "w": 7.0, "new": 2, "more": "y"}


def test_texts_that_are_meant_as_keys_are_refused(table):
    """They would be read as the names of files."""
    with pytest.raises(OptionError, match=r"rows or keys are given as in \[\{\"id\": 1\}\]"):
        table.delete(["a", "b"])
    with pytest.raises(SchemaError, match="cannot read rows from list"):
        table.delete(["a", 1])
