"""dump: every kind of file that a table has is shown, and damage is said."""

import pyarrow as pa
import pytest

import kudulite
from tests.support.command_line import error, output, value


@pytest.fixture
def table(tmp_path) -> kudulite.Table:
    """A table with every kind of file."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    made = client.create_table(
        "t", pa.schema([("k", pa.int32()), ("v", pa.string())]), primary_key="k"
    )
    write = made.new_bulk_write("insert")
    write.commit([write.stage([pa.table({"k": range(50), "v": ["a"] * 50}, made.arrow_schema)])])
    made.flush()
    session = client.new_session()
    for key in (3, 60, 60):
        session.apply(made.new_upsert({"k": key, "v": "b"}))
        session.flush()
    session.apply(made.new_delete({"k": 4}))
    session.flush()
    made.flush()
    session.apply(made.new_upsert({"k": 70, "v": "log"}))
    session.apply(made.new_delete({"k": 5}))
    session.flush()
    return made


def test_each_file_is_shown(table):
    """As text and as JSON; nothing is changed by it."""
    seen = set()
    for path in [table.path, *sorted(table.path.rglob("*"))]:
        kind = path.name.split("-")[0]
        if (
            path.parent.name in ("manifest", "rowset", "log")
            or "-" in path.name
            or (path in (table.path, *table.path.rglob("lock")))
        ):
            if path.name == "hint" or path.parent.name == "tablet":
                continue
            found = value("dump", path)
            assert found["about"] or found["rows"], path
            assert output("dump", path, "--limit", 1)
            checked = found["about"].get("checked", "")
            assert not checked or checked.startswith(("as it was written", "not of")), path
            seen.add(path.parent.name if path.is_dir() or "-" not in path.name else kind)
    expected = {"base", "bloom", "key", "manifest", "redo", "rowset", "superblock", "undo", "log"}
    assert expected <= seen
    table.check().raise_if_bad()


def test_rows_of_files_are_as_they_were_written(table):
    """Row ids and cells of base data and deltas, records of the log."""
    base = [value("dump", path, "--limit", 100) for path in table.path.rglob("base-*.parquet")]
    (first,) = [found for found in base if found["about"]["row_count"] == 50]
    assert first["rows"][7] == {"rowid": 7, "k": 7, "v": "a"}
    assert [column["id"] for column in first["about"]["columns"]] == [0, 1]
    (redo,) = [value("dump", path) for path in table.path.rglob("redo-*.arrow")]
    assert [(row["rowid"], row["op"]) for row in redo["rows"]] == [(3, "UPDATE"), (4, "DELETE")]
    assert redo["rows"][0]["column 1"] == "b" and "column 1" not in redo["rows"][1]
    keys = [value("dump", path) for path in table.path.rglob("key-*.arrow")]
    assert "80000003" in {row["key"] for found in keys for row in found["rows"]}
    logs = [value("dump", path) for path in sorted(table.path.rglob("log/*.log"))]
    records = [(row["op"], row["k"]) for found in logs for row in found["rows"]]
    assert records[-2:] == [("INSERT", 70), ("DELETE", 5)]
    (lock,) = [value("dump", path)["about"] for path in table.path.rglob("lock")]
    assert lock["safe_timestamp"] > 0 and "of process" in lock["announced"]
    assert value("dump", table.path)["about"]["table_id"] == table._store.newest().table_id


def test_a_commit_in_the_log_says_what_it_was(tmp_path):
    """As versions() lists it; rows of a session have no such facts."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    made = kudulite.connect(tmp_path, background_maintenance=False).create_table(
        "t", schema, primary_key="k"
    )
    made.upsert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}], message="first")
    made.delete([{"k": 1}])
    (path,) = made.path.rglob("log/*.log")
    found = value("dump", path)["rows"]
    facts = [(row["op"], row["k"], row["write"], row.get("message")) for row in found]
    inserts = [("INSERT", key, "upsert", "first") for key in (1, 2)]
    assert facts == [*inserts, ("DELETE", 1, "delete", None)]
    (tablet,) = value("partitions", made.path)
    assert (tablet["rows"], tablet["unflushed"], tablet["rowsets"]) == (1, 2, 0)


def test_damage_and_strangers_are_named(table, tmp_path):
    """A file that is not as its superblock says; a file that is none of a table's."""
    for pattern, problem in (("bloom-*.bin", "CRC"), ("redo-*.arrow", "")):
        file = max(table.path.rglob(pattern))
        file.write_bytes(file.read_bytes()[:-40] + b"?" * 40)
        about = value("dump", file)["about"]
        assert about["checked"].startswith("WRONG") and problem in about["problem"]
        assert "WRONG" in output("dump", file)
    assert "not one of a table's files" in error("dump", table.path / "manifest" / "hint")
    assert "neither a kudulite table nor inside one" in error("dump", tmp_path)
