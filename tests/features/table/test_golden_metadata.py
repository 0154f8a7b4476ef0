"""The exact bytes of manifests and superblocks: what is written today is in files of `golden`."""

import datetime
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from kudulite.chain.manifest import DroppedRange, Manifest, TabletEntry, VersionList
from kudulite.chain.partition import (
    HashDimension,
    PartitionSchema,
    RangeWithHashSchema,
    TabletPartition,
)
from kudulite.chain.schema_history import PlacedColumn, SchemaChange
from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.model.schema import Column, Schema
from kudulite.model.types import parse_type
from kudulite.rowset.rowset_meta import BaseFileMeta, RowSetMeta
from kudulite.storage.storage import FileRef
from kudulite.tablet.superblock import Superblock
from kudulite.tablet.tombstones import TombstoneFileMeta
from kudulite.wal.segment import LOG_BEGIN, LogPosition

GOLDEN = Path(__file__).parent / "golden"

SCHEMA = Schema(
    (
        Column(0, "k", parse_type("int64"), nullable=False, encoding="bit_shuffle"),
        Column(1, "day", parse_type("date"), nullable=False),
        Column(4, "größe", parse_type("decimal(5, 2)"), True, Decimal("1.50"), Decimal("-2.00")),
        Column(5, "b", parse_type("binary"), True, None, b"\0\xff", "plain", "lz4", 'a "note"'),
        Column(7, "d", parse_type("double"), True, float("inf"), 0.5),
        Column(8, "list", parse_type("array(string)")),
    ),
    key_count=2,
    next_column_id=9,
)
JULY = datetime.date(2013, 7, 1)
PARTITION = PartitionSchema(
    (HashDimension(("k",), 2, seed=7),),
    ("day", "k"),
    (RangeWithHashSchema(None, (JULY,)), RangeWithHashSchema((JULY, 5), None)),
    SCHEMA,
)


def ref(name: str, length: int = 10) -> FileRef:
    """A reference to a file."""
    return FileRef(name, length, 0xFFFF_FFFF)


def entry(name: str, range_index: int, bucket: int, **more: int) -> TabletEntry:
    """A tablet in a manifest."""
    place = TabletPartition(range_index, (bucket,))
    return TabletEntry(name, place, ref(f"superblock-{name}.json", 900), **more)


def delta(name: str, timestamp: int | None, first: int, last: int) -> DeltaFileMeta:
    """A delta file of one commit, or of several moments."""
    return DeltaFileMeta(ref(name), timestamp, first, last, 3, 1, 0, {4: 2, 5: 1})


FULL_ROWSET = RowSetMeta(
    id="r-2",
    row_count=9,
    key_min=b"\0a",
    key_max=b"\xff",
    base=(BaseFileMeta(ref("base-0"), (0, 1)), BaseFileMeta(ref("base-1"), (4, 5, 7, 8))),
    key_index=ref("key"),
    bloom=ref("bloom"),
    insert_timestamp=1 << 60,
    delete_timestamp=(1 << 60) + 1,
    redo=(delta("redo-1", 70, 70, 70), delta("redo-2", None, 71, 80)),
    undo=(delta("undo-1", None, 60, 65),),
)
SMALL_ROWSET = RowSetMeta("r-1", 1, b"", b"", (), ref("key"), ref("bloom"))

FULL_MANIFEST = Manifest(
    table_id="id",
    version=12,
    schema=SCHEMA,
    partition=PARTITION,
    tablets=(
        entry("t-0", 0, 0, timestamp=5, live_row_count=6, bytes_on_disk=7),
        entry("t-1", 0, 1),
        entry("t-2", 1, 0),
        entry("t-3", 1, 1),
    ),
    created=1,
    commit_id="commit",
    applications={"a": 4, "ä": 0},
    history_seconds=60,
    history_start=2,
    tags={"first": 3},
    dropped=(
        DroppedRange(
            RangeWithHashSchema((JULY,), (JULY, 5)), 9, (entry("t-8", 0, 0, timestamp=8),)
        ),
    ),
    previous_crc32=17,
    versions=VersionList(
        users=(
            (1, 1, "create", 0, 0, 0, 0, "ada@host:7", ""),
            (11, 5, "upsert", 6, 5, 4, 3, "Bär@host:8", 'a "note"'),
        ),
        maintenance=((12, 1 << 60, "memory flush", 0, 0, 0, 0, "ada@host:7", ""),),
    ),
)
LOGGED_MANIFEST = replace(FULL_MANIFEST, log_start=LogPosition(2, 4096), log_end=LogPosition(3, 40))
ORDERED_MANIFEST = replace(FULL_MANIFEST, versions=replace(FULL_MANIFEST.versions, ordered_from=11))
OWNED_MANIFEST = replace(FULL_MANIFEST, owner="Ada", comment='a "table"')
CUSTOM = (HashDimension(("day", "k"), 3),)
HASHED_MANIFEST = replace(
    FULL_MANIFEST,
    partition=replace(
        PARTITION,
        ranges=(
            RangeWithHashSchema(None, (JULY,)),
            RangeWithHashSchema((JULY, 5), None, CUSTOM),
        ),
    ),
    tablets=(*FULL_MANIFEST.tablets, entry("t-4", 1, 2)),
    dropped=(
        DroppedRange(
            RangeWithHashSchema((JULY,), (JULY, 5), (HashDimension(("k",), 2, seed=9),)), 9, ()
        ),
    ),
)
BARE = Schema.build([Column(0, "k", parse_type("string"), nullable=False)], ["k"])
FIRST_MANIFEST = Manifest(
    table_id="id",
    version=1,
    schema=BARE,
    partition=PartitionSchema.build(BARE),
    tablets=(entry("t-0", 0, 0),),
    created=1,
    commit_id="commit",
)
# Written in format version 5, because one of its columns is immutable.
LATER_SCHEMA = replace(
    SCHEMA, columns=(*SCHEMA.columns[:-1], replace(SCHEMA.columns[-1], mutable=False))
)
LATER_MANIFEST = replace(
    FULL_MANIFEST, schema=LATER_SCHEMA, partition=replace(PARTITION, schema=LATER_SCHEMA)
)
# Written in format version 6: column 3 was dropped, 7 widened and then renamed, 8 added.
ALTERED_MANIFEST = replace(
    FULL_MANIFEST,
    schema_changes=(
        SchemaChange(
            8,
            (
                PlacedColumn(2, Column(3, "old", parse_type("int8"), False, 4)),
                PlacedColumn(4, Column(7, "e", parse_type("float"), True, float("inf"), 0.5)),
            ),
            (8,),
        ),
        SchemaChange(11, (PlacedColumn(4, Column(7, "e", parse_type("double"))),), ()),
    ),
)
SMALL_SUPERBLOCK = Superblock("t-0", (SMALL_ROWSET,))
FULL_SUPERBLOCK = Superblock(
    "t-0",
    (SMALL_ROWSET, FULL_ROWSET),
    LogPosition(3, 4096),
    (TombstoneFileMeta(ref("tombstone-1.arrow"), 4, 2, 5, 6),),
)
OLD_START = FULL_SUPERBLOCK.log_start  # of the tablet's own log, in older files
OLD_FULL_SUPERBLOCK = replace(FULL_SUPERBLOCK, log_start=LOG_BEGIN, wal_start=OLD_START)

BASE = replace(FULL_SUPERBLOCK, file=ref("superblock-full.json", 100_000))
CHANGED_SUPERBLOCK = replace(
    FULL_SUPERBLOCK,
    rowsets=(
        replace(SMALL_ROWSET, delete_timestamp=90).with_redo((delta("redo-3", 81, 81, 81),)),
        FULL_ROWSET,
        replace(SMALL_ROWSET, id="r-3"),
    ),
)
OLD_CHANGED_SUPERBLOCK = replace(CHANGED_SUPERBLOCK, log_start=LOG_BEGIN, wal_start=OLD_START)

VALUES = {
    "manifest-full": FULL_MANIFEST,
    "manifest-first": FIRST_MANIFEST,
    "manifest-ordered": ORDERED_MANIFEST,
    "manifest-owned": OWNED_MANIFEST,
    "manifest-immutable": LATER_MANIFEST,
    "manifest-hashed": HASHED_MANIFEST,
    "manifest-altered": ALTERED_MANIFEST,
    "manifest-logged": LOGGED_MANIFEST,
    "superblock-small": SMALL_SUPERBLOCK,
    "superblock-full": FULL_SUPERBLOCK,
}


@pytest.mark.parametrize("name", VALUES)
def test_the_bytes_are_those_of_the_golden_file(name: str):
    """Order of keys, spelling of values, absent fields: nothing may differ."""
    value, content = VALUES[name], (GOLDEN / f"{name}.json").read_bytes()
    assert value.encode() == ((content, None) if isinstance(value, Superblock) else content)


@pytest.mark.parametrize("name", VALUES)
def test_the_golden_file_is_read(name: str):
    """To an equal value."""
    value = VALUES[name]
    assert type(value).decode((GOLDEN / f"{name}.json").read_bytes(), "x") == value


def test_the_bytes_of_a_superblock_with_a_base_are_those_of_the_golden_file():
    """And they are read to an equal value, with the base."""
    content = (GOLDEN / "superblock-changes.json").read_bytes()
    assert CHANGED_SUPERBLOCK.encode(BASE) == (content, BASE)
    assert Superblock.decode(content, "x", lambda ref: BASE) == CHANGED_SUPERBLOCK


@pytest.mark.parametrize(
    ("version", "value"),
    [(3, replace(FULL_MANIFEST, versions=VersionList())), (7, FULL_MANIFEST)],
)
def test_a_manifest_of_an_older_format_is_read(version: int, value: Manifest):
    """Version 3 has no list of versions; in version 7 each tablet has a log of its own."""
    content = (GOLDEN / f"manifest-full-version-{version}.json").read_bytes()
    found = Manifest.decode(content, "x")
    assert (found, found.format_version, found.has_tablet_logs) == (value, version, True)
    assert not Manifest.decode(value.encode(), "x").has_tablet_logs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("small-version-2", SMALL_SUPERBLOCK),
        ("full-version-3", OLD_FULL_SUPERBLOCK),
        (
            "changes-version-4",
            replace(CHANGED_SUPERBLOCK, log_start=LOG_BEGIN, wal_start=OLD_START),
        ),
    ],
)
def test_a_superblock_of_an_older_format_is_read(name: str, value: Superblock):
    """Its position is one of the log that the tablet had, and none of the table's."""
    content = (GOLDEN / f"superblock-{name}.json").read_bytes()
    assert Superblock.decode(content, "x", lambda ref: OLD_FULL_SUPERBLOCK) == value


def test_a_superblock_has_no_position_of_an_older_log():
    """It is written after the upgrade, which has taken the tablet's log over."""
    content, _ = replace(FULL_SUPERBLOCK, wal_start=OLD_START).encode()
    assert Superblock.decode(content, "x") == FULL_SUPERBLOCK
