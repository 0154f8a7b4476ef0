"""Files of a table that were swapped, linked, or changed by somebody: refused, and nothing else.

Names and ids are in test_names_on_disk.py. The mutations are small here; `FileMutations` runs any
number of them.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kudulite
from kudulite.basefile.bloom import BloomFilter
from kudulite.basefile.key_index import decode_header
from kudulite.chain.manifest import Manifest
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import CorruptionError, KuduliteError, StorageError, TableNotFoundError
from kudulite.storage.checked_json import encode_checked_json
from kudulite.storage.file_system import AppendFile
from kudulite.storage.names import version_name
from kudulite.storage.tablet_lock import TabletLock
from kudulite.table import tablet_memory
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock
from kudulite.wal.record_format import RecordDecoder, decode_frame
from kudulite.wal.segment import decode_segment_header
from tests.support.machines.file_mutations import FileMutations
from tests.support.tables.core_tables import CoreTables, environment
from tests.support.tables.wal_changes import TWO_COLUMNS
from tests.support.tiers import by_tier

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.float64())])
HALVES = {"columns": ["k"], "bounds": [[None, 1000], [1000, None]]}


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """A client of tables that are not checked when the test ends, because they are damaged."""
    return Client(tmp_path, environment())


def make_halves(client: Client, name: str = "t") -> Table:
    """A table of two tablets with files of equal lengths, and a row in the log of each."""
    table = client.create_table(name, SCHEMA, primary_key="k", range_partitions=HALVES)
    for start, factor in ((0, 1.5), (1000, -1.5)):
        rows = {"k": range(start, start + 100), "v": [factor * n for n in range(100)]}
        table.insert(pa.table(rows, SCHEMA))
    with client.new_session() as session:
        for key in (5, 1005):
            session.apply(table.new_upsert({"k": key, "v": 7.0}))
    return table


def opened(table: Table) -> Table:
    """The table, of which nothing is in memory."""
    return Table(TableStore(table.path, environment()))


# -- files in the place of others


@pytest.mark.parametrize("pattern", ["base-*", "key-*", "bloom-*", "redo-*"])
def test_two_files_of_equal_length_that_are_swapped_are_found(client: Client, pattern: str):
    """Base data by its name in the footer, which is read first; all others by their CRC."""
    table = make_halves(client)
    table.upsert(pa.table({"k": [1, 1001], "v": [9.0, 9.0]}, SCHEMA))
    first, second = sorted(table.path.glob(f"tablet/*/rowset/*/{pattern}"))[:2]
    contents = first.read_bytes(), second.read_bytes()
    assert pattern == "redo-*" or len(contents[0]) == len(contents[1])
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    damaged = opened(table)
    with pytest.raises(CorruptionError, match=pattern[:-1]):
        if pattern == "bloom-*":
            damaged.get(2000)
            damaged.get(20)
        else:
            damaged.changes(0).to_arrow()
            damaged.scan(where="v > 0").to_arrow()
    assert damaged.check().problems


def test_two_logs_of_equal_length_that_are_swapped_are_found(client: Client):
    """Each segment names its tablet. Reads, writes, flushes and checks all refuse it."""
    table = make_halves(client)
    first, second = sorted(table.path.glob("tablet/*/wal/*"))
    contents = first.read_bytes(), second.read_bytes()
    assert len(contents[0]) == len(contents[1])
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    message = f"belongs to another tablet, expected tablet ({first.parts[-3]}|{second.parts[-3]})"
    for use in (lambda t: t.get(5), lambda t: t.upsert([{"k": 5, "v": 1.0}]), Table.flush):
        with pytest.raises(CorruptionError, match=message):
            use(opened(table))
    assert any("belongs to another tablet" in problem for problem in opened(table).check().problems)


def test_base_data_without_its_name_is_read(client: Client, monkeypatch: pytest.MonkeyPatch):
    """Older software did not write the name."""
    from kudulite.basefile import base_data

    stamps = base_data.footer_stamps

    def without_name(path: Path, **options: Any) -> dict:
        found = dict(stamps(path, **options))
        del found[base_data.FILE_NAME_KEY]
        return found

    monkeypatch.setattr(base_data, "footer_stamps", without_name)
    table = make_halves(client)
    assert opened(table).scan().count() == 200
    assert opened(table).check().is_good


def test_a_hint_and_files_that_nobody_wrote_are_left_alone(client: Client):
    """A hint of 250 digits, and names that are almost those of versions."""
    table = make_halves(client)
    folder = table.path / "manifest"
    for hint in (b"9" * 250, b"\xb2", b"-1", b"", b"1_0"):
        (folder / "hint").write_bytes(hint)
        for name in ("5.json", "\u0665.json", f"{'9' * 25}.json", "x.json", "00000000000000000009"):
            (folder / name).write_text("{}")
        assert opened(table).scan().count() == 200
    opened(table).insert(pa.table({"k": [500], "v": [1.0]}, SCHEMA))
    assert opened(table).check().is_good


# -- symbolic links


@pytest.mark.parametrize("place", ["manifest", "tablet", "staging"])
def test_a_folder_of_a_table_that_is_a_link_is_refused(client: Client, place: str):
    """Also by maintenance, which would remove files behind it."""
    table, other = make_halves(client), make_halves(client, "other")
    before = set(other.path.rglob("*"))
    shutil.rmtree(table.path / place)
    (table.path / place).symlink_to(other.path / place)
    for use in (lambda t: t.maintain(grace_seconds=0), lambda t: t.scan().count(), Table.check):
        with pytest.raises(CorruptionError, match=f"{place}: a symbolic link"):
            use(opened(table))
    assert set(other.path.rglob("*")) == before


@pytest.mark.parametrize(
    "pattern", ["tablet/*", "tablet/*/rowset", "tablet/*/rowset/*", "tablet/*/wal"]
)
def test_a_folder_of_a_tablet_that_is_a_link_is_refused(client: Client, pattern: str):
    """A copy of the folder stands elsewhere, so that all names and checksums are right."""
    table = make_halves(client)
    folder = next(iter(sorted(table.path.glob(pattern))))
    moved = client.root / "elsewhere"
    folder.rename(moved)
    folder.symlink_to(moved)
    before = set(moved.rglob("*"))
    with pytest.raises(CorruptionError, match="symbolic link"):
        opened(table).scan(where="v >= 0").to_arrow()
    with pytest.raises(CorruptionError, match="symbolic link"):
        opened(table).compact()
    assert set(moved.rglob("*")) == before


@pytest.mark.parametrize(
    "pattern",
    ["manifest/*1.json", "tablet/*/superblock-*", "tablet/*/lock", "tablet/*/wal/*"]
    + [f"tablet/*/rowset/*/{kind}-*" for kind in ("base", "key", "bloom")],
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_that_is_a_link_or_a_pipe_is_refused(client: Client, pattern: str, kind: str):
    """Opening a pipe without O_NONBLOCK would block until a writer opens it."""
    table = make_halves(client)
    for path in table.path.glob(pattern):
        moved = client.root / f"moved-{path.name}"
        path.rename(moved)
        if kind == "link":
            path.symlink_to(moved)
        else:
            os.mkfifo(path)
    use: Callable[[Table], object] = Table.check
    problems: tuple[str, ...] = ()
    try:
        problems = use(opened(table)).problems
        opened(table).upsert([{"k": 1, "v": 2.0}])
    except KuduliteError as error:
        problems += (str(error),)
    assert any("link" in problem or "regular" in problem for problem in problems), problems


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_version_that_is_a_link_to_nothing_is_refused(client: Client, is_seen: bool):
    """By a process that begins, and by one that has seen the version before."""
    table = make_halves(client)
    newest = max(table.path.glob("manifest/*.json"))
    if not is_seen:
        table = opened(table)
    (newest.parent / version_name(int(newest.stem) + 1)).symlink_to("nowhere")
    for use in (lambda t: t.scan().count(), lambda t: t.tag("x")):
        with pytest.raises(StorageError, match="it is a symbolic link"):
            use(table)


def test_a_table_behind_a_link_is_a_table(client: Client):
    """The folder of a table, or of a client, may be anywhere."""
    table = make_halves(client)
    link = client.root / "link"
    link.symlink_to(table.path)
    found = kudulite.open_table(link)
    found.upsert([{"k": 1, "v": 2.0}])
    assert found.get(1) == {"k": 1, "v": 2.0}
    assert found.check().is_good


# -- moved, and not written


def test_a_table_that_is_moved_while_it_is_read_is_not_damaged(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    """Between its manifest and its log."""
    table = make_halves(client)
    moved, real = client.root / "moved", tablet_memory.read_wal

    def read_wal(*args: object, **options: object) -> object:
        if not moved.exists():
            table.path.rename(moved)
        return real(*args, **options)

    monkeypatch.setattr(tablet_memory, "read_wal", read_wal)
    with pytest.raises(TableNotFoundError, match="moved or deleted"):
        opened(table).scan().count()


@pytest.mark.parametrize("is_back", [False, True], ids=["away", "and back"])
@pytest.mark.parametrize("use", ["new_bulk_write", "update", "flush", "scan", "count"])
def test_a_table_that_is_moved_during_a_call_is_not_damaged(
    client: Client, monkeypatch: pytest.MonkeyPatch, use: str, is_back: bool
):
    """Reads and writes say that it was moved, and do not notice if it is back at once."""
    table = make_halves(client)
    moved, real = client.root / "moved", tablet_memory.read_wal

    def read_wal(*args: object, **options: object) -> object:
        monkeypatch.setattr(tablet_memory, "read_wal", real)
        table.path.rename(moved)
        try:
            return real(*args, **options)
        finally:
            if is_back:
                moved.rename(table.path)

    calls: dict[str, Callable[[Table], object]] = {
        "new_bulk_write": lambda found: found.new_bulk_write("upsert").abort(),
        "update": lambda found: found.update(where="k = 1", set={"v": 2.0}),
        "flush": lambda found: found.flush(),
        "scan": lambda found: found.scan().to_arrow(),
        "count": lambda found: found.live_row_count,
    }
    found = opened(table)
    monkeypatch.setattr(tablet_memory, "read_wal", read_wal)
    if is_back:
        calls[use](found)
        return
    with pytest.raises(TableNotFoundError):
        calls[use](found)


def lost(*_args: object) -> None:
    """Fail as on a disk that is not there any more."""
    raise StorageError(errno.EIO, "the disk is lost")


def test_rows_whose_end_cannot_be_noted_are_taken_back(core: CoreTables):
    """The lock file cannot be written after the fsync: the same rows may be written again."""
    table = make_halves(core.client())
    session, other = core.client().new_session("auto"), opened(table)
    assert other.scan().count() == 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TabletLock, "set_wal_end", lost)
        with pytest.raises(StorageError, match="the disk is lost"):
            session.apply(table.new_insert({"k": 700, "v": 1.0}))
        assert other.get(700) is None
    session.apply(table.new_insert({"k": 700, "v": 1.0}))
    assert other.get(700) == {"k": 700, "v": 1.0}
    assert opened(table).scan().count() == other.scan().count() == 201


def test_an_error_says_that_rows_are_durable(core: CoreTables):
    """Where the disk is lost after the fsync of the log, and nothing can be taken back."""
    table = make_halves(core.client())
    session = core.client().new_session("auto")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TabletLock, "set_wal_end", lost)
        patch.setattr(AppendFile, "cut", lost)
        with pytest.raises(StorageError, match="the rows are durable in the log of tablet"):
            session.apply(table.new_insert({"k": 700, "v": 1.0}))
    assert opened(table).get(700) == {"k": 700, "v": 1.0}
    session.apply(table.new_upsert({"k": 700, "v": 2.0}))
    assert opened(table).get(700) == {"k": 700, "v": 2.0}


def test_rows_whose_safe_timestamp_cannot_be_noted_are_written(core: CoreTables):
    """Readers advance it under the lock."""
    table = make_halves(core.client())
    session, other = core.client().new_session("auto"), opened(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TabletLock, "advance_safe_timestamp", lost)
        session.apply(table.new_insert({"k": 700, "v": 1.0}))
        assert other.get(700) == {"k": 700, "v": 1.0}
    assert other.scan().count() == 201


# -- mutations


@pytest.fixture(scope="module")
def mutations(tmp_path_factory: pytest.TempPathFactory) -> FileMutations:
    """A table of which each file is changed and put back."""
    return FileMutations(tmp_path_factory.mktemp("mutations"))


@pytest.mark.both
@pytest.mark.parametrize("is_sealed", [False, True])
def test_mutated_files_are_refused_or_read(mutations: FileMutations, is_sealed: bool):
    """Equal rows or a KuduliteError; with right checksums some rows or a KuduliteError."""
    outcomes = mutations.run(by_tier(40, 2000), seed=4711, is_sealed=is_sealed)
    assert {outcome.is_refused for outcome in outcomes} == {False, True}


# -- parsers


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=9,
)
NAMES = ("format_version", "tablet_id", "rowsets", "wal_start", "tablets", "schema", "partition")
PARSERS: dict[str, Callable[[bytes], object]] = {
    "manifest": lambda content: Manifest.decode(content, "x"),
    "superblock": lambda content: Superblock.decode(content, "x"),
    "segment": lambda content: decode_segment_header(content, 1, "x"),
    "frame": lambda content: decode_frame(memoryview(content), 0, salt=bytes(8), offset=40),
    "record": lambda content: RecordDecoder(TWO_COLUMNS).decode_all(pa.py_buffer(content)),
    "bloom filter": lambda content: BloomFilter(Path("x"), content).key_count,
    "key index": lambda content: decode_header(content, path="x", batch_count=1),
}


@pytest.mark.parametrize("parser", PARSERS)
@given(content=st.binary(min_size=1, max_size=80))
def test_any_bytes_are_refused(parser: str, content: bytes):
    """By a CorruptionError and nothing else."""
    for prefix in (b"", b"kudbloom", b"kudulwal", b"KLWF"):
        with pytest.raises(CorruptionError):
            PARSERS[parser](prefix + content)


@given(body=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_json_is_refused(body: dict):
    """Members of the right names with any values, the checksum right."""
    with pytest.raises(CorruptionError):
        Manifest.decode(encode_checked_json({"format_version": 4, **body}), "x")
    with pytest.raises(CorruptionError):
        Superblock.decode(json.dumps({"format_version": 3, **body, "x": 1}).encode(), "x")
