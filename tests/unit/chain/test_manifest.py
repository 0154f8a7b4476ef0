"""Manifests and superblocks: round trip, newer versions refused, damage named with its file."""

import json
import zlib
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite
from kudulite.chain.manifest import Manifest, Origin
from kudulite.client.table import Table, store_of
from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.storage.checked_json import encode_checked_json
from kudulite.storage.names import version_name
from kudulite.storage.table_lock import create_lock_file
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock
from kudulite.upkeep.alter import forget_alterations
from kudulite.wal.segment import LOG_BEGIN
from tests.support.tables.core_tables import CoreTables, altered, environment


@pytest.fixture
def table(core: CoreTables) -> Table:
    """A table with base data, REDO files, an ended rowset and an application's version."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", "decimal(5, 2)", default=Decimal("1.50")),
    ]
    table = core.client().create_table(
        "t",
        kudulite.schema(columns, "k"),
        hash_partitions=[(["k"], 2)],
        range_partitions={"columns": ["k"], "bounds": [[None, 5], [7, None]]},
    )
    table.insert([{"k": k} for k in (1, 2, 3, 8, 9)])
    table.truncate()
    table.insert([{"k": k} for k in (1, 2, 3, 8, 9)], application_id="a", application_version=4)
    table.delete([{"k": 1}])
    return table


def newest(table: Table) -> tuple[TableStore, Manifest]:
    """A store that has seen nothing, and its newest version."""
    store = TableStore(table.path, environment())
    return store, store.newest()


def with_body(content: bytes, change) -> bytes:
    """A manifest with its body changed and its CRC made right again."""
    body = json.loads(content.partition(b"\n")[0])
    change(body)
    line = json.dumps(body).encode()
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line)


def test_a_manifest_survives_its_file(table):
    """Encoding and decoding give an equal value."""
    _, manifest = newest(table)
    assert Manifest.decode(manifest.encode(), "x") == manifest
    assert manifest.applications == {"a": 4}


def test_a_manifest_of_format_version_1_is_read(table):
    """Version 1 had neither tags, dropped ranges nor versions; without a retention no start."""

    def as_version_1(body: dict) -> None:
        body["format_version"] = 1
        del body["tags"], body["dropped"], body["history_start"], body["previous_crc32"]
        del body["versions"]

    path = table.path / "manifest" / version_name(table.version)
    content = with_body(path.read_bytes(), as_version_1)
    for folder in (table.path / "tablet").iterdir():
        create_lock_file(folder / "lock")
    path.unlink()
    path.write_bytes(content)
    old = kudulite.open_table(table.path)
    assert [row["k"] for row in old.scan(ordered=True).to_pylist()] == [2, 3, 8, 9]
    assert old.tags == {} and old.versions() == []
    old.insert([{"k": 1}])
    old.flush()
    assert newest(old)[1].version == Manifest.decode(content, "x").version + 2
    assert [made.operation for made in old.versions()] == ["memory flush", "insert", "upgrade"]
    assert newest(old)[1].format_version == 8
    assert old.check().problems == ()


def test_every_version_has_the_newest_format(table, monkeypatch):
    """Older software says what to do. A version that was read knows the format of its file."""
    _, manifest = newest(table)
    for used in ({}, {"owner": "ada"}, {"comment": "text"}, {"format_version": 4}):
        content = replace(manifest, **used).encode()
        assert content.startswith(b'{"format_version":8,')
        assert Manifest.decode(content, "x") == replace(manifest, **used)
    old = with_body(content, lambda body: body.update(format_version=5))
    assert Manifest.decode(old, "x").format_version == 5
    assert Manifest.decode(old, "x").successor(Origin("test", 1)).format_version == 8
    monkeypatch.setattr("kudulite.chain.manifest.FORMAT_VERSION", 7)
    with pytest.raises(FormatVersionError, match="x: table of format version 8, known: 1 to 7; up"):
        Manifest.decode(content, "x")


def test_a_table_has_the_columns_before_an_alteration_while_they_can_be_read(core):
    """Once its moment is ancient, they are gone."""
    client = core.client()
    columns = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = client.create_table("t", columns, primary_key="k")
    before = newest(table)[1]
    altered(client, "t", lambda alterer: alterer.add_column("x", kudulite.int8))
    altered(client, "t", lambda alterer: alterer.alter_column("x").comment("no change to reads"))
    manifest = newest(table)[1]
    assert Manifest.decode(manifest.encode(), "x") == manifest
    assert [change.added for change in manifest.schema_changes] == [(before.schema.next_column_id,)]
    altered(client, "t", lambda alterer: alterer.set_history_retention(0))
    assert forget_alterations(store_of(table)) == 0  # no range
    assert newest(table)[1].schema_changes == ()
    assert b"schema_changes" not in newest(table)[1].encode()
    assert newest(table)[1].history_start >= manifest.schema_changes[0].until


@pytest.mark.parametrize(
    "change",
    [
        {"until": -1, "columns": [], "added": []},
        {"until": 1 << 64, "columns": [], "added": []},
        {"until": 5, "columns": [], "added": ["a"]},
        {"until": 5, "columns": [{}], "added": []},
        {"until": 5, "columns": [], "added": [0]},  # the key
        {"until": 5, "columns": 7, "added": []},
        {"until": 5, "columns": [], "added": None},
        [],
    ],
)
def test_damaged_changes_of_the_schema_are_refused(table, change):
    """With the path; no error of another kind is raised."""
    content = newest(table)[1].encode()
    body = json.loads(content.splitlines()[0])
    for changes in ([change], change):
        damaged = encode_checked_json({**body, "schema_changes": changes or 3})
        with pytest.raises(CorruptionError, match="x.json"):
            Manifest.decode(damaged, "x.json")


def test_a_superblock_survives_its_file(table):
    """With REDO files and ended rowsets."""
    store, manifest = newest(table)
    for entry in manifest.tablets:
        superblock = store.tablet(entry).superblock
        assert Superblock.decode(superblock.encode()[0], "x") == superblock
    metas = [m for e in manifest.tablets for m in store.tablet(e).superblock.rowsets]
    assert any(m.delete_timestamp for m in metas)
    assert any(m.redo for m in metas)


def test_a_newer_manifest_is_refused(table):
    """The error names the file, both versions, and what to do; nothing can be written either."""
    path = table.path / "manifest" / version_name(table.version)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(with_body(content, lambda body: body.update(format_version=9)))
    expected = rf"{path}: table of format version 9, known: 1 to 8; upgrade"
    with pytest.raises(FormatVersionError, match=expected):
        newest(table)
    with pytest.raises(FormatVersionError, match=expected):
        kudulite.open_table(table.path).upsert([{"k": 1}])
    path.write_bytes(content)


def test_a_newer_superblock_is_refused():
    """Likewise."""
    content = b'{"format_version":6,"tablet_id":"a","rowsets":[]}'
    with pytest.raises(FormatVersionError, match="s.json: superblock of format version 6"):
        Superblock.decode(content, "s.json")


def test_a_superblock_of_format_version_1_is_read():
    """Version 1 had no log: it begins at its beginning."""
    content = b'{"format_version":1,"tablet_id":"a","rowsets":[]}'
    assert Superblock.decode(content, "s.json") == Superblock("a", (), LOG_BEGIN)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: b"",
        lambda c: c[: len(c) // 2],
        lambda c: c[:-1],
        lambda c: c.replace(b"version", b"versiom", 1),
        lambda c: b"\x00" * len(c),
        lambda c: with_body(c, lambda body: body.pop("tablets")),
        lambda c: with_body(c, lambda body: body.update(tablets=5)),
        lambda c: b'{}\n{"crc32":%d}' % zlib.crc32(b"{}"),
        lambda c: b"1\n2",
    ],
)
def test_a_damaged_manifest_is_refused_with_its_path(table, damage):
    """Whatever the bytes are, it is a CorruptionError of that file. A last newline may lack."""
    path = table.path / "manifest" / version_name(table.version)
    content = path.read_bytes()
    damaged = damage(content)
    path.write_bytes(damaged)
    if damaged == content[:-1]:
        newest(table)
    else:
        with pytest.raises(CorruptionError, match=str(path)):
            newest(table)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'{"format_version":1}',
        b'{"format_version":1,"tablet_id":"a","rowsets":[{}]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_superblock_is_refused_with_its_path(content):
    """Whatever the bytes are."""
    with pytest.raises(CorruptionError, match=r"s\.json"):
        Superblock.decode(content, "s.json")


def test_a_superblock_of_another_tablet_is_refused(table):
    """An entry that points to the wrong file is found when the tablet is opened."""
    store, manifest = newest(table)
    first, second = manifest.tablets[:2]
    content = (store.tablet_folder(first.id) / first.superblock.name).read_bytes()
    path = store.tablet_folder(second.id) / first.superblock.name
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=rf"{path}: of tablet {first.id}, not {second.id}"):
        store.tablet(replace(second, superblock=first.superblock))
