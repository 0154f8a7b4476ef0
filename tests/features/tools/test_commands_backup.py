"""backup, backups, restore and copy on the command line."""

import pyarrow as pa
import pytest

import kudulite
from tests.support.command_line import error, output, value
from tests.support.tables.core_tables import stored


@pytest.fixture
def table(tmp_path) -> kudulite.Table:
    """A table with rows in base data, in deltas, and in a log."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    made = client.create_table(
        "t", pa.schema([("k", pa.int64()), ("v", pa.string())]), primary_key="k",
        hash_partitions=[("k", 2)],
    )  # fmt: skip
    write = made.new_bulk_write("insert")
    rows = pa.table({"k": range(100), "v": ["a"] * 100})
    write.commit([write.stage([rows])])
    made.upsert([{"k": 7, "v": "b"}])
    return made


def test_backups_are_made_listed_and_restored(table, tmp_path):
    """Each says what it did, and as JSON says it to programs."""
    target, copy = tmp_path / "set", tmp_path / "root" / "copy"
    assert "does not exist" in error("backups", target)
    target.mkdir()
    assert output("backups", target) == "" and value("backups", target) == []
    text = output("backup", table.path, target, "--content-hash")
    assert text.startswith("full backup ") and "100 rows" in text
    before = stored(table)
    table.delete([{"k": 7}])
    found = value("backup", table.path, target)
    assert (found["kind"], found["changes"], found["deletes"]) == ("incremental", 1, 1)
    listed = value("backups", target, "--verify")
    assert [row["kind"] for row in listed] == ["full", "incremental"] and listed[1] == found
    assert found["id"] in output("backups", target)
    assert "99 rows, as of " in output("restore", target, copy)
    assert stored(kudulite.open_table(copy)) == stored(table)
    assert "overwrite" in error("restore", target, copy)
    again = value("restore", target, copy, "--at", listed[0]["id"], "--overwrite")
    assert (again["rows"], again["moment"]) == (100, listed[0]["moment"])
    assert stored(kudulite.open_table(copy)) == before
    table.purge([{"k": 8}])
    assert "rows were purged" in error("backup", table.path, target, "--incremental")
    assert output("backup", table.path, target).startswith("a full backup, because at the moment")
    assert value("backup", table.path, target, "--full")["kind"] == "full"


def test_a_copy_has_the_whole_past(table, tmp_path):
    """Every moment reads the same in both, and each goes on by itself; dropped ranges as well."""
    moments = [table.current_timestamp()]
    for key in range(3):
        table.delete([{"k": key}])
        table.upsert([{"k": 50 + key, "v": None}])
        moments.append(table.current_timestamp())
    found = value("copy", table.path, tmp_path / "other" / "copy")
    copy = kudulite.open_table(tmp_path / "other" / "copy")
    for moment in [*moments, found["moment"]]:
        assert stored(copy, moment) == stored(table, moment)
    assert copy.changes(moments[0], found["moment"]).count() == 6
    assert copy._store.newest().table_id != table._store.newest().table_id
    copy.check().raise_if_bad()
    copy.upsert([{"k": 1, "v": "only here"}])
    copy.maintain(0, 0)
    copy.check().raise_if_bad()
    assert stored(copy) != stored(table) and stored(copy, moments[0]) == stored(table, moments[0])
    assert "it is there" in error("copy", table.path, copy.path)
    assert not list((table.path / "writes").iterdir())


def test_a_copy_of_the_present_has_the_rows_only(table, tmp_path):
    """One insert; nothing is read before it."""
    table.delete([{"k": 1}])
    text = output("copy", table.path, tmp_path / "copy", "--present")
    assert "without its past" in text
    copy = kudulite.open_table(tmp_path / "copy")
    assert stored(copy) == stored(table)
    assert copy.statistics.undo_file_count == copy.statistics.redo_file_count == 0
    copy.check().raise_if_bad()


def test_a_copy_takes_dropped_ranges_along(tmp_path):
    """They are of the past."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    ranges = {"columns": ["k"], "bounds": [[0, 10], [10, 20]]}
    table = client.create_table(
        "r", pa.schema([("k", pa.int64())]), primary_key="k", range_partitions=ranges
    )
    table.insert({"k": [1, 11]})
    before = table.current_timestamp()
    table = client.new_table_alterer(table).drop_range_partition({"k": 10}, {"k": 20}).alter()
    for flags, past in (([], [(1,), (11,)]), (["--present"], None)):
        place = tmp_path / "root" / f"copy{len(flags)}"
        output("copy", table.path, place, *flags)
        copy = kudulite.open_table(place)
        assert stored(copy) == [(1,)]
        if past is not None:
            assert stored(copy, before) == past
        copy.check().raise_if_bad()


def test_a_copy_remembers_ordered_deletes(tmp_path):
    """An older change that arrives in the copy does not bring the row back."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    schema = pa.schema([("k", pa.int64()), ("seq", pa.int64())])
    table = client.create_table("t", schema, primary_key="k")
    changes = pa.table({"k": [1, 2], "seq": [5, 6], "op": ["D", "U"]})
    table.apply(changes, ordering_column="seq")
    output("copy", table.path, tmp_path / "copy")
    copy = kudulite.open_table(tmp_path / "copy")
    (file,) = copy.path.rglob("tombstone-*.arrow")
    assert value("dump", file)["rows"][0]["value"] == 5
    assert value("dump", file)["about"]["checked"].startswith("as it was written")
    copy.apply(pa.table({"k": [1], "seq": [4], "op": ["U"]}), ordering_column="seq")
    assert stored(copy) == [(2, 6)]
    copy.check().raise_if_bad()


def test_verify_names_every_damaged_file(table, tmp_path):
    """Of all backups, damaged manifests and lost parents too; sound ones are not named."""
    target = tmp_path / "set"
    made = [value("backup", table.path, target)["id"]]
    for key in (8, 9):
        table.upsert([{"k": key, "v": "c"}])
        made.append(value("backup", table.path, target)["id"])
    assert kudulite.verify_backups(target) == {}
    first, second, third = made
    files = sorted((target / first).glob("*.parquet"))
    assert len(files) > 1
    for file in files:
        file.write_bytes(b"x" + file.read_bytes()[1:])
    (target / second / "manifest.json").write_text("{}")
    found = value("backups", target, "--verify", status=1)["problems"]
    assert [(name, len(problems)) for name, problems in found.items()] == [
        (first, len(files)), (second, 1), (third, 1),
    ]  # fmt: skip
    assert all(str(f) in text for f, text in zip(files, sorted(found[first]), strict=True))
    text = output("backups", target, "--verify", status=1)
    assert f"backup {first}: {len(files)} problems\n" in text and str(files[-1]) in text
    assert f"backup {second}: 1 problem\n" in text


def test_backups_of_a_wrong_place_are_an_error(table, tmp_path):
    """A typing error does not look like a set that is in order."""
    for flags in ([], ["--verify"], ["--json"]):
        output("backups", tmp_path / "typo", *flags, status=1)
        assert "typo does not exist" in error("backups", tmp_path / "typo", *flags)
    (tmp_path / "empty").mkdir()
    assert "has no backup to verify" in error("backups", tmp_path / "empty", "--verify")
    assert "is a table, not the directory of a table's backups" in error("backups", table.path)
    (tmp_path / "file").write_text("")
    assert "is a file, not" in error("backups", tmp_path / "file")
