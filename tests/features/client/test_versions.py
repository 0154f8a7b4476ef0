"""The list of versions: what made each, when, who, how many rows; in every manifest, bounded."""

import getpass
import os
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.manifest import (
    MAINTENANCE_VERSIONS_MAX,
    USER_VERSIONS_MAX,
    Manifest,
    Origin,
    VersionList,
)
from kudulite.errors import CorruptionError, OptionError
from kudulite.table.table_store import TableStore
from kudulite.tablet.row_effects import WriteCounts
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, stored

SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int32())])


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """A table of one tablet, without rows."""
    return core.client().create_table("t", SCHEMA, primary_key="k")


def rows(*keys: int) -> list[dict[str, int]]:
    """Rows with v = k."""
    return [{"k": k, "v": k} for k in keys]


def test_writes_are_listed_newest_first_with_their_counts(table):
    """Each by the name of its method; version, timestamp and counts are those of the result."""
    results = {
        "insert": table.insert(rows(1, 2, 3)),
        "insert_ignore": table.insert_ignore(rows(3, 4)),
        "upsert": table.upsert(rows(4, 5), message="nightly load"),
        "update": table.update(where=table["k"] == 5, set={"v": 6}, message="fix"),
        "delete": table.delete(where=table["k"] == 5),
        "apply": table.apply([{"op": "D", "k": 1, "v": None}, {"op": "I", "k": 7, "v": 7}]),
        "overwrite": table.overwrite(rows(1, 2)),
        "truncate": table.truncate(),
    }
    found = table.versions()
    assert [version.operation for version in found] == [*reversed(results), "create"]
    assert [version.version for version in found] == list(range(table.version, 0, -1))
    for version in found[:-1]:
        result = results[version.operation]
        assert version.version == result.version and version.timestamp == result.timestamp
        counts = (result.inserted, result.updated, result.deleted, result.ignored)
        assert (version.inserted, version.updated, version.deleted, version.ignored) == counts
        assert version.writer.startswith(f"{getpass.getuser()}@")
        assert version.writer.endswith(f":{os.getpid()}")
    messages = {version.operation: version.message for version in found if version.message}
    assert messages == {"upsert": "nightly load", "update": "fix"}
    assert stored(table, found[-3].timestamp) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_everything_that_makes_a_version_is_listed(core):
    """By the method's name, or by the maintenance operation's; no number is missing."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = client.create_table("t", SCHEMA, primary_key="k")
    altered(client, "t", lambda alterer: alterer.set_history_retention(1))
    table.tag("x")
    table.delete_tag("x")
    for value in range(4):
        table.upsert([{"k": k, "v": value} for k in range(2000)])
    with client.new_session() as session:
        session.apply(table.new_upsert({"k": 1, "v": 9}))
    table.flush()
    table.compact()
    table.insert(rows(3000))
    table.compact()
    clock.microseconds += 10_000_000
    table.insert(rows(3001))
    table.delete(rows(3001))
    clock.microseconds += 10_000_000
    table.maintain(grace_seconds=3600)
    table.purge([1])
    found = table.versions()
    assert {version.operation for version in found} == {
        *("create", "alter", "tag", "delete_tag", "upsert", "insert", "delete", "purge"),
        *("memory flush", "major delta compaction", "merging compaction", "history collection"),
    }
    assert [version.version for version in found] == list(range(table.version, 0, -1))
    assert [version.message for version in found if "tag" in version.operation] == ["x", "x"]


def test_a_copy_begins_its_own_list(core, table):
    """Its versions are its own."""
    table.insert(rows(1))
    table.copy_to(core.root / "root" / "copy")
    assert [version.operation for version in core.client().table("copy").versions()] == ["copy"]
    table.copy_to(core.root / "root" / "other", with_past=False)
    operations = [version.operation for version in core.client().table("other").versions()]
    assert operations == ["copy", "alter", "create"]
    # The copied table was flushed.
    operations = [version.operation for version in table.versions()]
    assert operations == ["memory flush", "insert", "create"]


def test_the_list_is_bounded_and_maintenance_does_not_push_users_out():
    """Each kind has its own length; numbers descend."""
    versions = VersionList()
    for number in range(1, 400):
        origin = Origin("upsert", number, WriteCounts(1, 2, 3, 4), "m", number % 3 > 0)
        versions = versions.with_version(number, origin)
    found = versions.newest_first()
    assert len(found) == USER_VERSIONS_MAX + MAINTENANCE_VERSIONS_MAX
    numbers = [version.version for version in found]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[:3] == [399, 398, 397] and numbers[-1] == 399 - 3 * (USER_VERSIONS_MAX - 1)
    assert VersionList.from_json(versions.to_json()) == versions


def test_a_version_prints_as_a_line(table):
    """And a list of them is a frame."""
    table.upsert(rows(1, 2), message="it's me")
    version, created = table.versions()
    assert repr(replace(version, writer="ada@host:7", timestamp=kudulite.Timestamp(1 << 60))) == (
        '<version 2 1978-12-02T19:29:36.710656Z+0 upsert; 2 inserted; ada@host:7; "it\'s me">'
    )
    assert repr(replace(created, writer="ada@host:7", timestamp=kudulite.Timestamp(1 << 60))) == (
        "<version 1 1978-12-02T19:29:36.710656Z+0 create; ada@host:7>"
    )
    assert pd.DataFrame(table.versions())["operation"].tolist() == ["upsert", "create"]


@pytest.mark.parametrize("message", ["x" * 501, "ä" * 251, 5, b"bytes"])
def test_a_message_that_is_too_long_or_no_text_is_refused(table, message):
    """Before anything is written; 500 bytes are taken."""
    with pytest.raises(OptionError, match=r"table 't': a message is a text of at most 500 bytes"):
        table.upsert(rows(1), message=message)
    assert table.upsert(rows(1), message="ä" * 250).version == table.version == 2
    assert table.versions()[0].message == "ä" * 250


def empty_list(store: TableStore) -> None:
    """Publish a version that lists none, so that the table is whole again."""
    made = replace(store.newest().successor(Origin("test", 1)), versions=VersionList())
    with store.turn() as lock:
        store.update(lambda _: made, store.newest(), lock)


@pytest.mark.parametrize(
    "listed",
    [
        ((1, 2),),
        ((1, 1, "create", 0, 0, 0, "0", "w", ""),),
        ((1, 1 << 64, "create", 0, 0, 0, 0, "w", ""),),
        ((True,) * 9,),
    ],
)
def test_a_list_of_another_form_is_damage(table, listed):
    """The rest of the manifest is readable."""
    store = table._store
    newest = store.newest()
    bad = replace(newest.successor(Origin("test", 1)), versions=VersionList(listed))
    with store.turn() as lock:
        store.update(lambda _: bad, newest, lock)
    with pytest.raises(CorruptionError, match=r"version 2: not a manifest"):
        table.versions()
    assert Manifest.decode(bad.encode(), "x").versions.users == listed
    assert table.scan().count() == 0
    assert "not a manifest" in " ".join(table.check().problems)
    empty_list(store)


def test_a_list_of_other_versions_is_a_problem(table):
    """One that lacks its own version, or has one twice."""
    store = table._store
    for numbers in ((1,), (3, 3), (5, 4)):
        versions = VersionList()
        for number in numbers:
            versions = versions.with_version(number, Origin("test", 1))
        newest = store.newest()
        bad = replace(newest.successor(Origin("test", 1)), versions=versions)
        with store.turn() as lock:
            store.update(lambda _, bad=bad: bad, newest, lock)
        assert "lists versions" in " ".join(table.check().problems)
    empty_list(store)
