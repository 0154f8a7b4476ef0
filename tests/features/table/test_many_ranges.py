"""A table of many ranges: a maintenance operation costs what it changes, not what there is."""

import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

import kudulite
from kudulite.chain.manifest import Manifest, changed_entries
from tests.support.tables.core_tables import CoreTables, altered

WIDTH = 20


def made(core: CoreTables, count: int) -> kudulite.Table:
    """A table of so many ranges, each with several REDO files."""
    schema = pa.schema([("k", pa.int32()), ("v", pa.int64())])
    bounds = [[n * WIDTH, n * WIDTH + WIDTH] for n in range(count)]
    table = core.client().create_table(
        f"t{count}", schema, primary_key="k", range_partitions={"columns": ["k"], "bounds": bounds}
    )
    keys = np.arange(count * WIDTH, dtype=np.int32)
    for step in range(6):
        some = keys[keys % 7 != step] if step else keys
        table.upsert(pa.table({"k": some, "v": np.full(len(some), step)}, schema))
    return table


def calls(work: Callable[[], object]) -> int:
    """The calls of Python functions that some work takes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_maintenance_takes_as_many_calls_per_range_of_many(core):
    """Each operation makes a version: the others' entries, ranges and versions are shared."""
    per_range = {}
    for count in (10, 60):
        table = made(core, count)
        per_range[count] = calls(lambda table=table: table.maintain()) / count
        assert table.scan().count() == count * WIDTH
    assert per_range[60] < 1.2 * per_range[10]


def test_a_row_finds_its_tablet_in_as_many_calls_among_many(core):
    """Ranges are searched by their bounds, not tried one after the other."""
    count = {}
    for ranges in (4, 60):
        partition = made(core, ranges)._store.newest().partition
        keys = range(-1, ranges * WIDTH + 1)
        columns = {"k": pa.array(keys, pa.int32())}
        expected = partition.tablet_index(columns, len(keys)).tolist()
        assert [partition.tablet_of_key({"k": key}) for key in keys] == expected
        last = {"k": ranges * WIDTH - 1}
        count[ranges] = calls(lambda partition=partition, last=last: partition.tablet_of_key(last))
    assert count[4] == count[60]


def test_a_version_is_written_as_its_whole_form_would_be(core):
    """Texts that are kept from version to version are those of `json`."""
    table = made(core, 3)
    table.maintain()
    for change in (
        lambda a: a.drop_range_partition([0], [WIDTH]).set_owner("o"),
        lambda a: a.add_column("w", "int64"),
        lambda a: a.drop_column("w"),
    ):
        altered(core.client(), "t3", change)
    newest = table._store.newest()
    assert newest.dropped and newest.schema_changes
    fresh = Manifest.decode(newest.encode(), "m")
    assert fresh == newest and fresh.encode() == newest.encode()
    assert newest.encode() == encode_plain(newest.encode())


def encode_plain(content: bytes) -> bytes:
    """The file of the same object, written by `json` alone."""
    line = json.dumps(json.loads(content.split(b"\n")[0]), separators=(",", ":")).encode()
    return line + b'\n{"crc32":%d}\n' % zlib.crc32(line)


def test_changed_entries_are_those_that_differ(core):
    """Of a version that was built on the other, of one that was read, and of other tablets."""
    table = made(core, 4)
    before = table._store.newest()
    read = Manifest.decode(before.encode(), "m")
    entry = before.tablets[2]
    later = before.with_entry(replace(entry, live_row_count=7))
    assert changed_entries(before, later) == [(entry, later.tablets[2])]
    assert changed_entries(read, later) == [*zip(before.tablets, later.tablets, strict=True)]
    assert changed_entries(None, before) == [(None, each) for each in before.tablets]
    fewer = replace(before, tablets=before.tablets[1:])
    assert changed_entries(before, fewer) == [(before.tablets[0], None)]
    assert changed_entries(fewer, before) == [(None, before.tablets[0])]
