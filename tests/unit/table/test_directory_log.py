"""The log of a table on disk: all whole frames behind its durable end count, and no torn one."""

import errno
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from kudulite.chain.manifest import Manifest
from kudulite.chain.version_chain import VersionChain
from kudulite.client.client import Client
from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.names import segment_name
from kudulite.storage.open_file import AppendFile
from kudulite.storage.table_lock import LockState, read_lock_file
from kudulite.table.directory_log import DirectoryLog
from kudulite.table.table_store import TableStore
from kudulite.wal.commit_format import encode_commit
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.segment import LOG_BEGIN, SEGMENT_HEADER_BYTES, LogPosition, segment_path
from tests.support.tables.core_tables import environment
from tests.support.tables.row_writes import NotingStorage, new_table
from tests.support.tables.wal_changes import damage

STORAGE = LocalStorage()


class Log:
    """The log of an empty table of two tablets; its commits are never decoded."""

    def __init__(self, root: Path) -> None:
        self.disk = NotingStorage()
        self.store = TableStore(new_table(Client(root, environment()), 2).path, environment())
        self.manifest: Manifest = self.store.newest()
        self.folder = self.store.log.folder
        self.log = DirectoryLog(VersionChain(self.store.folder, self.disk, lambda _: None))
        self.last = self.manifest.timestamp
        self.end = LOG_BEGIN

    def writer(self, **options: int) -> LogWriter:
        """A writer that goes on at the end."""
        return LogWriter(STORAGE, self.folder, self.manifest.table_id, self.end, **options)

    def append(self, count: int = 1, **options: int) -> LogPosition:
        """Append commits, durable, without a word to anybody."""
        parts = {entry.id: b"rowsrows" for entry in self.manifest.tablets}
        with self.writer(**options) as log:
            for _ in range(count):
                self.last += 1
                self.end = log.append([encode_commit(self.last, parts)])
        return self.end

    def recovered(self) -> LogPosition:
        """The end that a holder of the lock finds."""
        self.disk.steps.clear()
        with self.store.turn() as turn:
            return self.log.settle(turn, self.manifest)

    @property
    def state(self) -> LockState:
        """The cells of the lock file."""
        return read_lock_file(self.store.log.lock_path)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """An empty log."""
    return Log(tmp_path)


def test_a_log_is_longer_by_a_frame_whole_or_torn_or_by_a_segment(log: Log):
    """Not by the zeros that a writer puts behind its frames, nor by a header."""
    assert not log.log.is_longer(LOG_BEGIN)
    first = log.append(padding_bytes=1000)
    path = segment_path(log.folder, 1)
    assert path.stat().st_size > first.offset
    assert log.log.is_longer(LOG_BEGIN)
    assert log.log.is_longer(LogPosition(1, 0))
    assert not log.log.is_longer(first)
    content = path.read_bytes()
    log.append()
    assert log.log.is_longer(first)
    path.write_bytes(content[: first.offset] + b"\1" + content[first.offset + 1 :])
    assert log.log.is_longer(first)
    path.write_bytes(content)
    log.end = first
    with log.writer() as writer:
        rolled = writer.roll()
    assert log.log.is_longer(first)
    assert not log.log.is_longer(rolled)


def test_nothing_is_done_where_nothing_is_behind_the_end(log: Log):
    """Without a log, too."""
    assert (log.recovered(), log.disk.steps) == (LOG_BEGIN, [])
    assert log.state == LockState(0, LOG_BEGIN, is_of_this_boot=True)
    log.append(3)
    log.recovered()
    before = log.state
    assert (log.recovered(), log.disk.steps, log.state) == (log.end, [], before)


@pytest.mark.parametrize("segment_bytes_max", [8 << 20, 200], ids=["one segment", "a few"])
def test_whole_frames_behind_the_end_are_made_durable_then_noted(log: Log, segment_bytes_max: int):
    """All segments that may not be, and the folder; the times of their commits are used."""
    log.append()
    log.recovered()
    first, is_full = log.end.segment, segment_bytes_max == 200
    end = log.append(8, segment_bytes_max=segment_bytes_max)
    assert (end.segment > first + 1) == is_full
    assert log.state.log_end < end
    assert log.recovered() == end
    names = [segment_name(number) for number in range(first, end.segment + 1)]
    expected = [(step, name) for name in names for step in ("append", "fsync")]
    # Nothing is behind the end in the first of a few.
    assert log.disk.steps == [*expected[is_full:], ("fsync", log.folder.name)]
    assert log.state == LockState(log.last, end, is_of_this_boot=True)


class DroppingFile(AppendFile):
    """A file whose fsync fails while `failures` are left; only what was written since is synced."""

    durable: ClassVar[dict[str, bytearray]] = {}
    failures: ClassVar[int] = 0

    def append(self, content: bytes, offset: int) -> None:
        """Write bytes, which an fsync finds from then on."""
        super().append(content, offset)
        self._dirty = [*getattr(self, "_dirty", []), (offset, content)]

    def sync(self) -> None:
        """Fail, and forget which bytes are not on disk; or put them there."""
        dirty, self._dirty = getattr(self, "_dirty", []), []
        if DroppingFile.failures:
            DroppingFile.failures -= 1
            raise StorageError(errno.EIO, f"cannot fsync {self.path}")
        for offset, content in dirty:
            self.durable[self.path.name][offset : offset + len(content)] = content


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("segment_bytes_max", [8 << 20, 200], ids=["one segment", "a few"])
def test_frames_whose_fsync_has_failed_are_written_again_before_they_count(
    log: Log, monkeypatch: pytest.MonkeyPatch, failures: int, segment_bytes_max: int
):
    """The system forgets which pages it could not write: the next fsync succeeds without them."""
    log.append()
    log.recovered()
    first = log.end
    end = log.append(8, segment_bytes_max=segment_bytes_max)
    paths = sorted(log.folder.iterdir())
    on_disk = {path.name: bytearray(path.read_bytes()) for path in paths}
    for name, content in on_disk.items():
        begin = first.offset if name == segment_name(first.segment) else SEGMENT_HEADER_BYTES
        content[begin:] = bytes(len(content) - begin)  # the writer's fsync has failed
    monkeypatch.setattr(DroppingFile, "durable", on_disk)
    monkeypatch.setattr(DroppingFile, "failures", failures)
    monkeypatch.setattr(log.disk, "open_append", partial(DroppingFile, log.disk))
    if failures:
        with pytest.raises(StorageError, match="cannot fsync"):
            log.recovered()
        assert log.state.log_end == first
    assert log.recovered() == end
    assert on_disk == {path.name: path.read_bytes() for path in paths}


def test_a_roll_without_frames_is_found(log: Log):
    """Nothing may be appended to the segment before any more; no time was used."""
    log.append()
    log.recovered()
    with log.writer() as writer:
        rolled = writer.roll()
    before = log.state
    assert log.recovered() == rolled
    assert log.disk.steps[-1] == ("fsync", log.folder.name)
    assert log.state == LockState(before.safe_timestamp, rolled, is_of_this_boot=True)


@pytest.mark.parametrize("count", [0, 2])
def test_a_torn_frame_is_no_part_of_the_log(log: Log, count: int):
    """Those before it are; the file is left as it is."""
    log.append()
    log.recovered()
    whole = log.append(count) if count else log.end
    last = log.last
    end = log.append()
    path = segment_path(log.folder, 1)
    damage(path, end.offset - 1)
    content = path.read_bytes()
    assert log.recovered() == whole
    assert (path.read_bytes(), log.state.safe_timestamp, log.state.log_end) == (
        content,
        last,
        whole,
    )


def test_the_end_of_a_version_is_noted_where_the_lock_file_has_lost_its_own(log: Log):
    """The end that a version names is durable: it was published after it."""
    log.append(2)
    log.recovered()
    end = log.end
    log.manifest = replace(log.manifest, log_end=end)
    path = Path(log.store.log.lock_path)
    path.write_bytes(path.read_bytes()[:220])
    assert log.state.log_end == LOG_BEGIN
    assert (log.recovered(), log.disk.steps) == (end, [])
    assert log.state.log_end == end


def test_damage_before_the_end_of_a_longer_log_is_corruption(log: Log):
    """A frame that was noted as durable is not torn. Nothing is noted then."""
    log.append()
    log.recovered()
    end = log.end
    log.append(2)
    damage(segment_path(log.folder, 1), end.offset + 30)  # in the first of two new frames
    before = log.state
    with pytest.raises(CorruptionError, match="CRC"):
        log.recovered()
    assert log.state == before
