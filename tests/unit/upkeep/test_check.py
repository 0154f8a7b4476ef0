"""The check finds every kind of damage, and names the file or the tablet."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import kudulite
from kudulite.chain.manifest import Manifest
from kudulite.chain.partition import TabletPartition
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import CorruptionError
from kudulite.storage.names import version_name
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock
from tests.support.tables.core_tables import environment


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two tablets; base data, updates and deletes in both. Not checked at the end: it is bad."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", kudulite.int32, nullable=False),
    ]
    client = Client(tmp_path, environment())
    table = client.create_table("t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)])
    table.insert([{"k": k, "v": k} for k in range(20)])
    table.update([{"k": k, "v": -k} for k in range(10)])
    table.delete([{"k": k} for k in range(5)])
    table.insert([{"k": k, "v": k} for k in range(30, 40)])
    return table


def files(table: Table, pattern: str) -> list[Path]:
    """Files of the table, in order."""
    found = sorted(table.path.glob(f"tablet/*/{pattern}"))
    assert found
    return found


def problems(table: Table) -> tuple[str, ...]:
    """The problems that a check finds."""
    return table.check().problems


def rewrite(table: Table, change: Callable[[Superblock], Superblock]) -> str:
    """Change the first tablet's superblock and make the manifest fit it; returns its id."""
    store = TableStore(table.path, environment())
    manifest = store.newest()
    entry = manifest.tablets[0]
    superblock = change(store.tablet(entry).superblock)
    ref = store.write_superblock(superblock)
    metas = superblock.rowsets
    entry = replace(
        entry,
        superblock=ref,
        live_row_count=sum(meta.live_row_count for meta in metas),
        bytes_on_disk=sum(meta.bytes_on_disk for meta in metas),
    )
    put(table, replace(manifest, tablets=(entry, *manifest.tablets[1:])))
    return entry.id


def put(table: Table, manifest: Manifest) -> None:
    """Replace the newest version's file."""
    (table.path / "manifest" / version_name(manifest.version)).write_bytes(manifest.encode())


def with_rowset(superblock: Superblock, index: int, **changes) -> Superblock:
    """A superblock with one rowset's entry changed."""
    rowsets = list(superblock.rowsets)
    rowsets[index] = replace(rowsets[index], **changes)
    return replace(superblock, rowsets=tuple(rowsets))


def test_a_good_table_has_no_problems(table):
    """And the report counts what was read; nothing is changed."""
    before = {path: path.read_bytes() for path in table.path.rglob("*") if path.is_file()}
    report = table.check()
    assert report.raise_if_bad() is report
    assert report.is_good
    assert (report.table, report.version, report.tablet_count, report.row_count) == ("t", 5, 2, 25)
    assert report.rowset_count == 4
    assert report.file_count == 2 + 4 * 3 + 4
    assert report.byte_count == table.statistics.bytes_on_disk + sum(
        entry.superblock.length for entry in table._store.newest().tablets
    )
    assert {p: p.read_bytes() for p in before} == before


def test_an_empty_table_and_a_truncated_one_are_good(table):
    """Ended rowsets are checked like others; live rows are 0."""
    table.truncate()
    report = table.check().raise_if_bad()
    assert (report.row_count, report.rowset_count) == (0, 4)


@pytest.mark.parametrize(
    "pattern",
    [
        "rowset/*/base-*.parquet",
        "rowset/*/key-*.arrow",
        "rowset/*/bloom-*.bin",
        "rowset/*/redo-*.arrow",
    ],
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "remove"])
def test_a_damaged_file_is_named_once(table, pattern, damage):
    """By its path; other rowsets are checked nevertheless."""
    path = files(table, pattern)[0]
    content = path.read_bytes()
    middle = len(content) // 2
    path.unlink()
    if damage != "remove":
        path.write_bytes(
            {
                "flip": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
                "truncate": content[:middle],
                "extend": content + b"\0",
            }[damage]
        )
    (problem,) = problems(table)
    assert str(path) in problem
    with pytest.raises(CorruptionError, match=r"table 't' at version 5: 1 problems:"):
        table.check().raise_if_bad()


def test_a_damaged_superblock_is_named(table):
    """The other tablet is checked nevertheless."""
    manifest = table._store.newest()
    entry = manifest.tablets[1]
    path = table.path / "tablet" / entry.id / entry.superblock.name
    path.write_bytes(path.read_bytes() + b" ")
    report = table.check()
    assert [str(path) in problem for problem in report.problems] == [True]
    assert report.rowset_count == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: with_rowset(s, 0, row_count=5), r"\d+ keys, the superblock says 5"),
        (lambda s: with_rowset(s, 0, key_min=b"\0\0\0\0"), "the superblock says 00000000 to"),
        (lambda s: with_rowset(s, 0, key_max=b"\xff\xff\xff\xff"), "to ffffffff"),
        (lambda s: with_rowset(s, 0, redo=s.rowsets[0].redo[::-1]), "after .* in the rowset"),
        (lambda s: replace(s, rowsets=s.rowsets + s.rowsets[:1]), "a rowset is listed twice"),
        (lambda s: with_rowset(s, 0, delete_timestamp=5), "the rowset ended at 5, before"),
        (
            lambda s: with_rowset(s, 0, bloom=s.rowsets[1].bloom),
            r"bloom-[\w-]+\.bin: it does not exist",
        ),
        (
            lambda s: with_rowset(
                s,
                0,
                redo=(replace(s.rowsets[0].redo[0], delete_count=2), *s.rowsets[0].redo[1:]),
            ),
            "0 deletes .* the superblock says 2 deletes",
        ),
        (
            lambda s: with_rowset(
                s,
                0,
                redo=(replace(s.rowsets[0].redo[0], row_count=99), *s.rowsets[0].redo[1:]),
            ),
            "expected 99 rows",
        ),
        (
            lambda s: with_rowset(
                s,
                0,
                redo=(replace(s.rowsets[0].redo[0], update_counts={1: 1}), *s.rowsets[0].redo[1:]),
            ),
            "updates of column 1, the superblock says 1",
        ),
    ],
)
def test_a_wrong_superblock_is_found(table, change, message):
    """Each thing that is stored twice is compared."""
    rewrite(table, change)
    with pytest.raises(CorruptionError, match=message):
        table.check().raise_if_bad()


def test_a_key_that_is_live_twice_is_found(table):
    """A rowset listed under another id too: all its live keys are in both."""

    def double(superblock: Superblock) -> Superblock:
        meta = superblock.rowsets[1]
        source = table.path / "tablet" / superblock.tablet_id / "rowset" / meta.id
        target = source.with_name("twin")
        target.mkdir()
        for path in source.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        return replace(superblock, rowsets=(*superblock.rowsets, replace(meta, id="twin")))

    tablet_id = rewrite(table, double)
    (problem,) = problems(table)
    assert f"tablet {tablet_id}: " in problem
    assert "keys are live in rowset" in problem


def test_rows_of_another_tablet_are_found(table):
    """Two tablets with their places exchanged."""
    manifest = table._store.newest()
    first, second = manifest.tablets
    put(
        table,
        replace(
            manifest,
            tablets=(
                replace(second, partition=first.partition),
                replace(first, partition=second.partition),
            ),
        ),
    )
    found = problems(table)
    assert len(found) == 4
    assert all("rows belong to another tablet" in problem for problem in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"live_row_count": 3}, "live rows, the manifest says 3"),
        ({"bytes_on_disk": 3}, "bytes in its files, the manifest says 3"),
        ({"timestamp": 3}, "its newest change is at .* the manifest says 3"),
    ],
)
def test_wrong_figures_of_the_manifest_are_found(table, change, message):
    """Planning relies on these figures."""
    manifest = table._store.newest()
    put(
        table,
        replace(manifest, tablets=(replace(manifest.tablets[0], **change), manifest.tablets[1])),
    )
    with pytest.raises(CorruptionError, match=message):
        table.check().raise_if_bad()


@pytest.mark.parametrize("change", ["missing", "range", "bucket"])
def test_tablets_that_are_not_those_of_the_partitioning_are_found(table, change):
    """One that is missing, and one that says to be elsewhere: by the check and by every read."""
    manifest = table._store.newest()
    first, second = manifest.tablets
    places = {"range": TabletPartition(1 << 32, (0,)), "bucket": TabletPartition(0, (1,))}
    tablets = (
        (second,) if change == "missing" else (replace(first, partition=places[change]), second)
    )
    put(table, replace(manifest, tablets=tablets))
    assert any("not those of its partitioning" in problem for problem in problems(table))
    for read in (table.scan, partial(table.changes, 0)):
        with pytest.raises(CorruptionError, match="not those of its partitioning"):
            read().to_arrow()


def test_a_long_list_is_cut_in_the_error_and_whole_in_the_report(table):
    """Twenty are shown."""
    report = replace(table.check(), problems=tuple(f"problem {n}" for n in range(25)))
    with pytest.raises(CorruptionError, match=r"25 problems:(.|\n)*problem 19\n  and 5 more$"):
        report.raise_if_bad()
