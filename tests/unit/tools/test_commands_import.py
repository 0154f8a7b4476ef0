"""import-kudu: the tables of an export of a Kudu cluster, all at once, and its rehearsal.

The files are as Spark writes them; tests/spark/test_import_from_kudu.py has Spark write some.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import kudulite
from kudulite.tools.cli import app
from tests.support.command_line import error, output, value
from tests.support.tables.kudu_export import export


@pytest.fixture
def exports(tmp_path: Path) -> Path:
    """The export of a cluster of three tables, one of them empty."""
    folder = tmp_path / "exports"
    export(folder / "1-a", "impala::db.a", list(range(1000)))
    export(folder / "2-b", "b", [3, 1, 2])
    export(folder / "3-c", "c", [])
    return folder


def states(*arguments: object) -> list[tuple[str, str | None]]:
    """The state and the action of each table, of a command that may end with status 1."""
    result = CliRunner().invoke(app, ["import-kudu", *map(str, arguments), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    rows = json.loads(result.stdout)
    assert result.exit_code == any(row["state"] != "ok" for row in rows)
    return [(row["state"], row["result"] and row["result"]["action"]) for row in rows]


def test_a_cluster_is_rehearsed_imported_and_recognised(exports: Path, tmp_path: Path):
    """The rehearsal makes nothing; a second import changes nothing."""
    root = tmp_path / "wh"
    text = output("import-kudu", exports, root, "--dry-run")
    assert not root.exists()
    first = text.splitlines()[1]
    assert "impala::db.a" in first and "would be made" in first and "1,000" in first
    assert "hash(id) × 2" in first
    assert states(exports, root) == [("ok", "made")] * 3
    client = kudulite.connect(root, background_maintenance=False)
    assert client.list_tables() == ["b", "c", "impala::db.a"]
    assert [len(client.table(name)) for name in client.list_tables()] == [3, 0, 1000]
    table = client.table("impala::db.a")
    assert table.get(7)["city"] == "c7"
    assert (table.owner, table.schema["city"].compression) == ("ann", "lz4")
    assert table.partition_schema.hash_dimensions[0].seed == 7
    assert value("retention", table.path)["history_seconds"] == 3600
    assert [each.operation for each in table.versions()] == ["insert", "alter", "create"]
    table.delete([{"id": 7}])
    for flags in (["--dry-run"], []):
        assert states(exports, root, *flags) == [("ok", "is there already")] * 3
    assert len(table) == 999
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []
    table.check().raise_if_bad()


def test_a_table_that_cannot_be_made_does_not_keep_others_out(exports: Path, tmp_path: Path):
    """Nothing of it is left, and the next run goes on with it."""
    root = tmp_path / "wh"
    export(exports / "0-twice", "twice", [1, 1])
    shutil.rmtree(exports / "2-b" / "definition")
    assert states(exports, root, "--dry-run") == [
        ("ok", "would be made"), ("ok", "would be made"), ("failed", None), ("ok", "would be made"),
    ]  # fmt: skip
    assert states(exports, root) == [
        ("failed", None), ("ok", "made"), ("failed", None), ("ok", "made"),
    ]  # fmt: skip
    assert kudulite.connect(root).list_tables() == ["c", "impala::db.a"]
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == []
    shutil.rmtree(exports / "0-twice")
    shutil.rmtree(exports / "2-b")
    export(exports / "2-b", "b", [5])
    assert states(exports, root) == [
        ("ok", "is there already"), ("ok", "made"), ("ok", "is there already"),
    ]  # fmt: skip


def test_tables_of_something_else_are_left_alone(exports: Path, tmp_path: Path):
    """Another table of the name, and a later export of it, whose rows would be lost in silence."""
    root = tmp_path / "wh"
    client = kudulite.connect(root, background_maintenance=False)
    client.create_table("b", pa.schema([("k", pa.int64())]), primary_key="k").insert([{"k": 1}])
    expected = [("ok", "made"), ("failed", None), ("ok", "made")]
    rehearsed = [("ok", "would be made"), ("failed", None), ("ok", "would be made")]
    assert states(exports, root, "--dry-run") == rehearsed
    assert states(exports, root) == expected
    assert client.table("b").get(1) == {"k": 1}
    shutil.rmtree(exports / "1-a")
    export(exports / "1-a", "impala::db.a", [1, 2])
    assert states(exports / "1-a", root) == [("failed", None)]
    assert len(client.table("impala::db.a")) == 1000


def test_an_export_that_is_none_is_told(exports: Path, tmp_path: Path):
    """Before a row is read."""
    (tmp_path / "empty").mkdir()
    assert "is not the export of a Kudu cluster" in error("import-kudu", tmp_path / "empty", "wh")
    file = exports / "2-b" / "data" / "more.parquet"
    pq.write_table(pa.table({"id": [9], "town": ["x"]}), file)
    (exports / "1-a" / "data" / "bad.parquet").write_text("no Parquet")
    definition = exports / "3-c" / "definition" / "part-00000"
    definition.write_text(definition.read_text().replace("INT64", "INT65"))
    result = CliRunner().invoke(
        app, ["import-kudu", str(exports), str(tmp_path / "wh"), "--dry-run"]
    )
    assert result.exit_code == 1
    assert f"{file} has not the columns of the definition of table 'b': missing city, seen," in (
        result.stderr
    )
    assert "bad.parquet" in result.stderr and "INT65" in result.stderr.upper()
