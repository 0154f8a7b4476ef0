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
from kudulite.basefile import block_cache
from kudulite.basefile.bloom import BloomFilter
from kudulite.basefile.key_index import decode_header
from kudulite.chain.manifest import Manifest
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    CorruptionError,
    KuduliteError,
    StorageError,
    TableNotFoundError,
    UsageError,
)
from kudulite.storage.checked_json import encode_checked_json
from kudulite.storage.names import version_name
from kudulite.storage.open_file import AppendFile
from kudulite.storage.storage import FileRef
from kudulite.storage.table_lock import TableLock
from kudulite.table import directory_log
from kudulite.table.table_store import TableStore
from kudulite.tablet.superblock import Superblock
from kudulite.wal.frame_format import decode_frame
from kudulite.wal.record_format import RecordDecoder
from kudulite.wal.segment import decode_segment_header
from kudulite.wal.tablet_log import decode_tablet_records
from tests.support.machines.file_mutations import FileMutations
from tests.support.parsers import decoded_commits
from tests.support.tables.core_tables import CoreTables, environment
from tests.support.tables.old_tables import LOGGED, unpacked
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


def test_files_are_verified_once_by_a_process(client: Client, monkeypatch: pytest.MonkeyPatch):
    """Not again when the cache has lost them, unless the path or the reference is another one."""
    verified: list[str] = []
    check = block_cache.check_content

    def noted(path: Path, content: Any, ref: FileRef) -> None:
        verified.append(path.name.partition("-")[0])
        check(path, content, ref)

    table = make_halves(client)
    monkeypatch.setattr(block_cache, "check_content", noted)
    read = opened(table)
    for _ in range(3):
        assert read.get(20) == {"k": 20, "v": 30.0}
        assert read.get_many({"k": [21, 1021]}).num_rows == 2
        read._store.cache.clear()
    assert sorted(verified) == ["bloom", "bloom", "key", "key"]
    moved = client.rename_table(table.name, "moved")
    assert moved.get(20) == {"k": 20, "v": 30.0}
    assert sorted(verified[4:]) == ["bloom", "key"]


@pytest.mark.parametrize("pattern", ["base-*", "key-*", "bloom-*"])
def test_damage_is_found_when_a_process_first_reads_a_file(client: Client, pattern: str):
    """Also where the same keys were looked up in an undamaged copy of the table before."""
    table = make_halves(client)
    copy = table.path.with_name("copy")
    shutil.copytree(table.path, copy)
    for path in copy.glob(f"tablet/*/rowset/*/{pattern}"):
        content = bytearray(path.read_bytes())
        content[100] ^= 0x20
        path.write_bytes(content)
    environment_of_both = environment()
    good, damaged = (Table(TableStore(p, environment_of_both)) for p in (table.path, copy))
    for _ in range(2):
        assert good.get(20) == {"k": 20, "v": 30.0}
        with pytest.raises(CorruptionError, match=pattern[:-1]):
            damaged.get(20)


def test_two_logs_of_equal_length_that_are_swapped_are_found(client: Client):
    """Each segment names its table. Reads, writes, flushes and checks all refuse it."""
    table, other = make_halves(client), make_halves(client, "other")
    (first,), (second,) = table.path.glob("log/*"), other.path.glob("log/*")
    contents = first.read_bytes(), second.read_bytes()
    assert len(contents[0]) == len(contents[1])
    first.write_bytes(contents[1])
    table_id = table._store.newest().table_id
    message = f"belongs to another table, expected table {table_id}"
    for use in (lambda t: t.get(5), lambda t: t.upsert([{"k": 5, "v": 1.0}]), Table.flush):
        with pytest.raises(CorruptionError, match=message):
            use(opened(table))
    assert any("belongs to another table" in problem for problem in opened(table).check().problems)


def test_a_log_of_a_tablet_in_the_place_of_the_table_s_is_found(client: Client):
    """Their frames have no commits."""
    table, old = make_halves(client), unpacked(client.root / "old", LOGGED)
    (path,) = table.path.glob("log/*")
    path.write_bytes(min(old.path.glob("tablet/*/wal/*")).read_bytes())
    with pytest.raises(CorruptionError, match="is of the log of a tablet"):
        opened(table).scan().to_arrow()


def test_base_data_without_its_name_is_read(client: Client, monkeypatch: pytest.MonkeyPatch):
    """Older software did not write the name."""
    from kudulite.basefile import base_data, footer

    stamps = base_data.footer_stamps

    def without_name(path: Path, **options: Any) -> dict:
        found = dict(stamps(path, **options))
        del found[footer.FILE_NAME_KEY]
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


@pytest.mark.parametrize("place", ["manifest", "tablet", "writes", "log"])
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


@pytest.mark.parametrize("pattern", ["tablet/*", "tablet/*/rowset", "tablet/*/rowset/*"])
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
    ["manifest/*1.json", "tablet/*/superblock-*", "lock", "log/*"]
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


@pytest.mark.parametrize("is_relative", [False, True])
def test_a_table_behind_a_link_is_deleted_where_it_is(client: Client, is_relative: bool):
    """Else the link would be set aside, and the rows would stay; a relative one would lead astray.

    A renamed link leads to the same table.
    """
    table = make_halves(client)
    count = table.scan().count()
    other = Client(client.root / "other", environment())
    link = other.root / "t"
    link.symlink_to(f"../{table.name}" if is_relative else table.path)
    staged = other.new_staging().create_table("t", {"k": [1]}, primary_key="k")
    for delete in (
        lambda: other.delete_table("t"),
        lambda: other.soft_delete_table("t", 60),
        lambda: other.publish_table(staged, overwrite=True),
    ):
        with pytest.raises(UsageError, match=f"a symbolic link to {table.path}; delete the table"):
            delete()
        assert other.table("t").scan().count() == count
        assert other.list_soft_deleted_tables() == []
    assert other.rename_table("t", "u").scan().count() == count
    client.delete_table(table.name)
    assert other.list_tables() == []


# -- moved, and not written


def test_a_table_that_is_moved_while_it_is_read_is_not_damaged(
    client: Client, monkeypatch: pytest.MonkeyPatch
):
    """Between its manifest and its log."""
    table = make_halves(client)
    moved, real = client.root / "moved", directory_log.read_log

    def read_log(*args: object, **options: object) -> object:
        if not moved.exists():
            table.path.rename(moved)
        return real(*args, **options)

    monkeypatch.setattr(directory_log, "read_log", read_log)
    with pytest.raises(TableNotFoundError, match="moved or deleted"):
        opened(table).scan().count()


@pytest.mark.parametrize("is_back", [False, True], ids=["away", "and back"])
@pytest.mark.parametrize("use", ["stage", "update", "flush", "scan", "count"])
def test_a_table_that_is_moved_during_a_call_is_not_damaged(
    client: Client, monkeypatch: pytest.MonkeyPatch, use: str, is_back: bool
):
    """Reads and writes say that it was moved, and do not notice if it is back at once."""
    table, rows = make_halves(client), {"k": [500], "v": [1.0]}
    moved, real = client.root / "moved", directory_log.read_log

    def read_log(*args: object, **options: object) -> object:
        monkeypatch.setattr(directory_log, "read_log", real)
        table.path.rename(moved)
        try:
            return real(*args, **options)
        finally:
            if is_back:
                moved.rename(table.path)

    calls: dict[str, Callable[[Table], object]] = {
        "stage": lambda found: found.new_bulk_write("insert").stage(pa.table(rows, SCHEMA)),
        "update": lambda found: found.update(where="k = 1", set={"v": 2.0}),
        "flush": lambda found: found.flush(),
        "scan": lambda found: found.scan().to_arrow(),
        "count": lambda found: found.live_row_count,
    }
    found = opened(table)
    monkeypatch.setattr(directory_log, "read_log", read_log)
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
        patch.setattr(TableLock, "set_log_end", lost)
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
        patch.setattr(TableLock, "set_log_end", lost)
        patch.setattr(AppendFile, "cut", lost)
        with pytest.raises(StorageError, match="the rows are durable in the log, but"):
            session.apply(table.new_insert({"k": 700, "v": 1.0}))
    assert opened(table).get(700) == {"k": 700, "v": 1.0}
    session.apply(table.new_upsert({"k": 700, "v": 2.0}))
    assert opened(table).get(700) == {"k": 700, "v": 2.0}


def test_rows_whose_safe_timestamp_cannot_be_noted_are_written(core: CoreTables):
    """Readers find its time in the log."""
    table = make_halves(core.client())
    session, other = core.client().new_session("auto"), opened(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TableLock, "advance_safe_timestamp", lost)
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
NAMES = ("format_version", "tablet_id", "rowsets", "wal_start", "log_start")
NAMES += ("log_end", "tablets", "schema", "partition", "table_id", "version")
PARSERS: dict[str, Callable[[bytes], object]] = {
    "manifest": lambda content: Manifest.decode(content, "x"),
    "superblock": lambda content: Superblock.decode(content, "x"),
    "segment": lambda content: decode_segment_header(content, 1, "x"),
    "frame": lambda content: decode_frame(memoryview(content), 0, salt=bytes(8), offset=40),
    "commit": decoded_commits,
    "record": lambda content: RecordDecoder(TWO_COLUMNS).decode_rows(5, pa.py_buffer(content)),
    "tablet log": lambda content: decode_tablet_records(
        pa.py_buffer(content), RecordDecoder(TWO_COLUMNS)
    ),
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
        Manifest.decode(encode_checked_json({"format_version": 8, **body}), "x")
    with pytest.raises(CorruptionError):
        Superblock.decode(json.dumps({"format_version": 3, **body, "x": 1}).encode(), "x")
    with pytest.raises(CorruptionError):
        Superblock.decode(json.dumps({"format_version": 5, **body, "x": 1}).encode(), "x")
