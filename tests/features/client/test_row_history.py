"""The history of a row: which versions it has, and what is known of the oldest one."""

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import SchemaError
from tests.support.tables.core_tables import CoreTables, ManualClock

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
MICROSECONDS_A_DAY = 24 * 3600 * 1_000_000


def test_every_version_is_there_the_oldest_first(core):
    """Inserts and updates with the row from then on, deletes with the row that they took away."""
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 3)])
    made = table.insert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]).timestamp
    gone = table.delete([{"k": 1}]).timestamp
    session = client.new_session()
    session.apply(table.new_insert({"k": 1, "v": "c"}))
    session.flush()
    after = table.current_timestamp()
    table.flush()
    changed = table.upsert([{"k": 1, "v": "d"}, {"k": 3, "v": "x"}]).timestamp
    ended = table.truncate().timestamp
    found = table.history((1,)).to_pylist()
    assert [(row["v"], row["_change_type"]) for row in found] == [
        ("a", "insert"),
        ("a", "delete"),
        ("c", "insert"),
        ("d", "update_postimage"),
        ("d", "delete"),
    ]
    moments = [row["_commit_version"] for row in found]
    assert moments[:2] + moments[3:] == [made, gone, changed, ended]
    assert gone < moments[2] <= after
    assert table.history({"k": 9}).to_pylist() == []
    assert [row["_commit_timestamp"] for row in found] == [
        kudulite.Timestamp(moment).to_datetime() for moment in moments
    ]
    of_changes = list(table.changes(0).schema)[2:]
    assert list(table.history(9).schema)[2:-1] == [f.with_nullable(True) for f in of_changes]


def test_a_version_names_its_writer(core: CoreTables):
    """As the list of versions does, which does not have the rows of sessions."""
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key="k")
    table.insert([{"k": 1, "v": "a"}])
    session = client.new_session()
    session.apply(table.new_update({"k": 1, "v": "b"}))
    session.flush()
    table.upsert([{"k": 1, "v": "c"}])
    listed = {one.timestamp: one.writer for one in table.versions()}
    found = table.history(1).to_pylist()
    assert [row["v"] for row in found] == ["a", "b", "c"]
    writers = [row["_commit_writer"] for row in found]
    assert writers == [listed.get(row["_commit_version"]) for row in found]
    assert [bool(writer) for writer in writers] == [True, False, True]
    table.flush()
    assert table.history(1)["_commit_writer"].to_pylist() == writers


def test_only_what_a_read_may_see_is_there(core: CoreTables):
    """Of what is before the ancient history mark, the version that is current at the mark."""
    clock = ManualClock()
    table = core.client(clock=clock).create_table("t", SCHEMA, primary_key="k")
    stamps = []
    for value in "abc":
        clock.microseconds += 3 * MICROSECONDS_A_DAY
        stamps.append(table.upsert([{"k": 1, "v": value}]).timestamp)
        table.upsert([{"k": 2, "v": value}])
    table.delete([{"k": 2}])
    clock.microseconds += 5 * MICROSECONDS_A_DAY
    table.upsert([{"k": 9, "v": ""}])  # the mark is never after the newest commit
    found = table.history(1).to_pylist()
    assert [(row["v"], row["_commit_version"]) for row in found] == [
        ("b", stamps[1]),
        ("c", stamps[2]),
    ]
    clock.microseconds += 3 * MICROSECONDS_A_DAY
    table.upsert([{"k": 9, "v": ""}])
    assert table.history(2).to_pylist() == []
    assert [row["v"] for row in table.history(1).to_pylist()] == ["c"]


def test_a_key_that_is_none_is_refused(core):
    """As by `get`: the error names the table."""
    table = core.client().create_table("t", SCHEMA, primary_key="k")
    with pytest.raises(SchemaError, match="table 't'"):
        table.history((1, 2))
    with pytest.raises(SchemaError, match="table 't'"):
        table.history("x")


def test_a_version_at_the_mark_is_the_oldest(core: CoreTables):
    """A tag holds the mark at the moment of a version."""
    clock = ManualClock()
    table = core.client(clock=clock).create_table("t", SCHEMA, primary_key="k")
    for value in "abc":
        stamp = table.upsert([{"k": 1, "v": value}]).timestamp
        if value == "b":
            table.tag("held", stamp)
    clock.microseconds += 8 * MICROSECONDS_A_DAY
    table.upsert([{"k": 9, "v": ""}])  # the mark is never after the newest commit
    assert [row["v"] for row in table.history(1).to_pylist()] == ["b", "c"]
