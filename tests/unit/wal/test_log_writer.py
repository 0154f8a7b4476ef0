"""Appending: durable steps, torn tails cut off, failures taken back, several writers in turn."""

import errno
import os
import threading
from pathlib import Path

import pytest

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.table_lock import TableLock, create_lock_file, read_lock_file
from kudulite.wal.log_reader import LogTail, read_log
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.segment import (
    LOG_BEGIN,
    SEGMENT_HEADER_BYTES,
    LogPosition,
    list_segments,
    segment_path,
)
from tests.support.doubles.killing_storage import (
    FailingStorage,
    HalfStorage,
    KilledError,
    KillingStorage,
)
from tests.support.tables.wal_changes import TABLE, commit_of, inserts

HEAD = SEGMENT_HEADER_BYTES


class RecordingStorage(LocalStorage):
    """Notes each durable step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []

    def before(self, operation: str, path: Path) -> None:
        """Note it."""
        self.steps.append((operation, "segment" if "." in path.name else path.name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a log may be made."""
    return tmp_path / "log"


def tail_of(
    folder: Path, start: LogPosition = LOG_BEGIN, end: LogPosition | None = None
) -> LogTail:
    """The log of TABLE."""
    return read_log(LocalStorage(), folder, TABLE, start, end)


def stamps(folder: Path, start: LogPosition = LOG_BEGIN) -> list[int]:
    """Timestamps of all commits."""
    return [commit.timestamp for commit in tail_of(folder, start).commits]


def one(timestamp: int) -> list[bytes]:
    """The commits of a small append."""
    return [commit_of(inserts(timestamp, [timestamp]))]


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a log."""
    return {path.name: path.read_bytes() for path in folder.glob("*")}


def frames(folder: Path) -> dict[str, bytes]:
    """All files of a log, without the zeros at the end of each."""
    return {name: content.rstrip(b"\0") for name, content in contents(folder).items()}


def test_an_append_is_one_write_and_one_fsync(folder: Path):
    """The first makes folder and segment, each name durable before a frame is."""
    steps = RecordingStorage()
    with LogWriter(steps, folder, TABLE) as writer:
        writer.append(one(1))
        made = [("create", "segment"), ("fsync", "segment"), ("link", "segment"), ("fsync", "log")]
        append = [("append", "segment"), ("fsync", "segment")]
        assert steps.steps == [("fsync", folder.parent.name), *made, *append]
        steps.steps.clear()
        writer.append(one(2))
        assert steps.steps == append
        steps.steps.clear()
        writer.roll()
        assert steps.steps == made


def test_a_folder_that_a_killed_process_has_made_becomes_durable(folder: Path):
    """It is there, but its name may not outlive a power failure, and all rows with it."""
    folder.mkdir()
    steps = RecordingStorage()
    with LogWriter(steps, folder, TABLE) as writer:
        writer.append(one(1))
    assert steps.steps[0] == ("fsync", folder.parent.name)


class UnsyncedName(RecordingStorage):
    """Refuses to sync the names of a log, until it `is_well`."""

    is_well = True

    def before(self, operation: str, path: Path) -> None:
        """Note a step, or refuse it."""
        if not self.is_well and (operation, path.name) == ("fsync", "log"):
            raise StorageError(errno.EIO, "the disk has a bad day")
        super().before(operation, path)


def test_a_segment_whose_name_was_not_synced_is_synced_later(folder: Path):
    """Before a frame in it is acknowledged: the file is there, but a power failure may take it."""
    steps = UnsyncedName()
    with LogWriter(steps, folder, TABLE) as writer:
        writer.append(one(1))
        steps.is_well = False
        with pytest.raises(StorageError):
            writer.roll()
        steps.is_well = True
        steps.steps.clear()
        writer.append(one(2))
    assert ("fsync", "log") in steps.steps
    assert stamps(folder) == [1, 2]


def test_a_segment_grows_in_steps_ahead_of_its_frames(folder: Path):
    """By zeros, which are no frames, and which only the last segment has."""
    with LogWriter(
        LocalStorage(), folder, TABLE, segment_bytes_max=1500, padding_bytes=1000
    ) as writer:
        sizes = []
        while writer.end.segment < 2:
            closed = writer.end.offset
            writer.append(one(len(sizes) + 1))
            assert writer.is_current
            sizes.append(segment_path(folder, 1).stat().st_size)
    assert sizes[0] == 1000
    assert set(sizes) == {1000, 1500, closed}
    assert segment_path(folder, 2).stat().st_size == 1000
    assert stamps(folder) == list(range(1, len(sizes) + 1))
    other = LogWriter(LocalStorage(), folder, TABLE, writer.end)
    assert other.is_current
    os.truncate(segment_path(folder, 2), writer.end.offset - 8)
    assert not other.is_current
    assert not writer.is_current
    with pytest.raises(CorruptionError, match="expected at least"):
        writer.append(one(9))


def test_segments_roll_at_their_size_and_when_told(folder: Path):
    """A frame never spans two; one that is larger than a segment has its own."""
    with LogWriter(LocalStorage(), folder, TABLE, segment_bytes_max=1000) as writer:
        assert writer.roll() == LogPosition(1, HEAD)
        ends = [writer.append(one(timestamp)) for timestamp in range(1, 8)]
        assert all(end.offset <= 1000 for end in ends)
        count = ends[-1].segment
        assert count > 2
        large = [commit_of(inserts(8, range(1, 5000)))]
        assert writer.append(large).segment == count + 1
        assert writer.append(large).segment == count + 2
        assert writer.roll() == writer.roll() == LogPosition(count + 3, HEAD)
        assert writer.end == LogPosition(count + 3, HEAD)
        writer.append(one(9))
    assert list_segments(LocalStorage(), folder) == list(range(1, count + 4))
    assert stamps(folder) == [1, 2, 3, 4, 5, 6, 7, 8, 8, 9]


@pytest.mark.parametrize("tail", [b"x", b"KLWF" + bytes(12), b"KLWF\xff\xff\xff\xff"])
def test_a_torn_tail_is_cut_off_before_the_next_append(folder: Path, tail: bytes):
    """By a new writer and by one that was there; durably, and by roll as well."""
    with LogWriter(LocalStorage(), folder, TABLE) as writer:
        end = writer.append(one(1))
    path = segment_path(folder, 1)
    for act in ("append", "roll"):
        with path.open("ab") as file:
            file.write(tail)
        steps = RecordingStorage()
        with LogWriter(steps, folder, TABLE, end) as writer:
            assert not writer.is_current
            assert tail_of(folder, end).end == end
            end = writer.append(one(2)) if act == "append" else writer.roll()
            assert writer.is_current
        assert steps.steps[:2] == [("truncate", "segment"), ("fsync", "segment")]
    assert stamps(folder) == [1, 2]


@pytest.mark.parametrize("part", [0, 0.1, 0.5, 0.9, 1])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("padding_bytes", [0, 64, 4096])
def test_a_write_that_fails_leaves_the_log_as_it_was(
    folder: Path, code: int, part: float, padding_bytes: int
):
    """Whatever part of the frame was written; the next append goes where it would have gone."""
    disk = HalfStorage(None, part)
    with LogWriter(disk, folder, TABLE, padding_bytes=padding_bytes) as writer:
        end = writer.append(one(1))
        before = frames(folder)
        disk.error = OSError(code, "no")
        with pytest.raises(StorageError, match=rf"cannot append to {segment_path(folder, 1)}") as e:
            writer.append(one(2))
        assert e.value.errno == code
        assert ("free some space" in str(e.value)) == (code == errno.ENOSPC)
        assert frames(folder) == before
        assert writer.end == end
        assert writer.is_current
        disk.error = None
        writer.append(one(3))
    assert stamps(folder) == [1, 3]


def test_a_write_is_in_the_log_from_its_sync_on(folder: Path):
    """Two steps do what an append does; until the second, `end` is where it was."""
    steps = RecordingStorage()
    with LogWriter(steps, folder, TABLE) as writer:
        before = writer.append(one(1))
        steps.steps.clear()
        end = writer.write(one(2))
        assert steps.steps == [("append", "segment")]
        assert end > before == writer.end
        assert tail_of(folder, LOG_BEGIN, writer.end).end == before
        assert not writer.is_current
        assert writer.sync() == end == writer.end
        assert steps.steps == [("append", "segment"), ("fsync", "segment")]
        assert writer.is_current
        with pytest.raises(AssertionError, match="nothing was written"):
            writer.sync()
    assert stamps(folder) == [1, 2]


@pytest.mark.parametrize("padding_bytes", [0, 4096])
@pytest.mark.parametrize("next_step", ["write", "take_back", "roll", "close"])
def test_a_write_that_is_not_synced_is_cut_off(folder: Path, next_step: str, padding_bytes: int):
    """By the next write, by `take_back` and by a roll; after these there is nothing to sync."""
    with LogWriter(LocalStorage(), folder, TABLE, padding_bytes=padding_bytes) as writer:
        before = writer.append(one(1))
        writer.write([commit_of(inserts(2, range(100)))])
        if next_step == "write":
            writer.write(one(3))
        else:
            getattr(writer, next_step)()
            with pytest.raises(AssertionError, match="nothing was written"):
                writer.sync()
            if next_step != "close":
                assert stamps(folder) == [1]
                assert (writer.end == before) == (next_step == "take_back")
            writer.write(one(3))
        writer.sync()
    assert stamps(folder) == [1, 3]


@pytest.mark.parametrize("padding_bytes", [0, 4096])
def test_a_sync_that_fails_takes_the_bytes_back(folder: Path, padding_bytes: int):
    """As an append that fails; the error is that of the fsync."""
    disk = UnsyncedFrames()
    with LogWriter(disk, folder, TABLE, padding_bytes=padding_bytes) as writer:
        end = writer.append(one(1))
        before = frames(folder)
        writer.write(one(2))
        disk.refused = 1
        with pytest.raises(StorageError, match="the disk has a bad day"):
            writer.sync()
        assert frames(folder) == before
        assert writer.end == end
        assert writer.is_current
        writer.append(one(3))
    assert stamps(folder) == [1, 3]


class UnsyncedFrames(LocalStorage):
    """Refuses as many times to sync a segment as `refused` says."""

    refused = 0

    def before(self, operation: str, path: Path) -> None:
        """Refuse it."""
        if self.refused and operation == "fsync":
            self.refused -= 1
            raise StorageError(errno.EIO, "the disk has a bad day")


@pytest.mark.parametrize("is_synced", [True, False])
def test_the_last_frame_can_be_taken_back(folder: Path, is_synced: bool):
    """Durably, and the next one takes its place."""
    steps = RecordingStorage()
    with LogWriter(steps, folder, TABLE) as writer:
        end = writer.append(one(1))
        writer.write(one(2))
        if is_synced:
            writer.sync()
        steps.steps.clear()
        writer.take_back()
        assert steps.steps == [("truncate", "segment"), ("fsync", "segment")]
        assert writer.end == end
        assert writer.is_current
        assert stamps(folder) == [1]
        writer.append(one(3))
    assert stamps(folder) == [1, 3]


def test_nothing_is_taken_back_after_a_roll(folder: Path):
    """The last frame is in a segment that is closed."""
    with LogWriter(LocalStorage(), folder, TABLE) as writer:
        writer.append(one(1))
        end = writer.roll()
        writer.take_back()
        assert writer.end == end
        writer.append(one(2))
    assert stamps(folder) == [1, 2]


def test_short_writes_are_completed(folder: Path):
    """The kernel may take a part of the bytes only."""
    with LogWriter(HalfStorage(None), folder, TABLE) as writer:
        writer.append([commit_of(inserts(1, range(1000)))])
    assert stamps(folder) == [1]


@pytest.mark.parametrize("segment_bytes_max", [1000, 1 << 20])
@pytest.mark.parametrize("padding_bytes", [0, 600])
def test_a_disk_error_at_any_step_loses_and_adds_nothing(
    folder: Path, segment_bytes_max: int, padding_bytes: int
):
    """All steps of four appends in turn, rolls among them: refused ones are not there."""
    limits = {"segment_bytes_max": segment_bytes_max, "padding_bytes": padding_bytes}
    for step in range(100):
        here = folder.with_name(f"log-{step}")
        disk, written, failed = FailingStorage(step), [], False
        with LogWriter(disk, here, TABLE, **limits) as writer:
            for timestamp in range(1, 9):
                try:
                    writer.append(one(timestamp))
                except StorageError:
                    failed = True
                else:
                    written.append(timestamp)
                assert stamps(here) == written
                tail = tail_of(here)
                assert tail.end >= writer.end
        if not failed:
            assert step > 16
            return
    raise AssertionError("steps without end")


@pytest.mark.parametrize("segment_bytes_max", [1000, 1 << 20])
@pytest.mark.parametrize("padding_bytes", [0, 600])
def test_killed_at_any_step_every_acknowledged_append_is_there(
    folder: Path, segment_bytes_max: int, padding_bytes: int
):
    """The one that was going on is there whole or not at all, and the log goes on."""
    limits = {"segment_bytes_max": segment_bytes_max, "padding_bytes": padding_bytes}
    for step in range(100):
        here = folder.with_name(f"log-{step}")
        written: list[int] = []
        disk = KillingStorage(step)
        writer = LogWriter(disk, here, TABLE, **limits)
        try:
            for timestamp in range(1, 9):
                writer.append(one(timestamp))
                written.append(timestamp)
        except KilledError:
            pass
        writer.close()
        tail = tail_of(here)
        found = [commit.timestamp for commit in tail.commits]
        assert found in (written, [*written, len(written) + 1])
        with LogWriter(LocalStorage(), here, TABLE, tail.end, segment_bytes_max=1000) as writer:
            for timestamp in (100, 101, 102, 103):
                writer.append(one(timestamp))
        assert stamps(here) == [*found, 100, 101, 102, 103]
        if len(written) == 8:
            return
    raise AssertionError("steps without end")


@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.99, 1])
@pytest.mark.parametrize("padding_bytes", [0, 2000])
def test_killed_within_a_write_the_append_is_whole_or_not_there(
    folder: Path, part: float, padding_bytes: int
):
    """The next writer cuts off the torn frame."""
    disk = HalfStorage(None, part)
    writer = LogWriter(disk, folder, TABLE, padding_bytes=padding_bytes)
    writer.append(one(1))
    disk.error = KilledError()
    with pytest.raises(KilledError):
        writer.append(one(2))
    writer.close()
    tail = tail_of(folder)
    # The last bytes of a frame are zeros, as is what they would have taken the place of.
    found = [1, 2] if part == 1 or (padding_bytes and part == 0.99) else [1]
    assert [commit.timestamp for commit in tail.commits] == found
    with LogWriter(LocalStorage(), folder, TABLE, tail.end) as writer:
        writer.append(one(3))
    assert stamps(folder) == [*found, 3]


def test_a_failure_that_cannot_be_taken_back_says_so(folder: Path):
    """Nothing is appended before the rest is cut off; who reads first may find the frame."""

    class BadDisk(LocalStorage):
        """Refuses to fsync and to truncate while it is bad."""

        is_bad = False

        def before(self, operation: str, path: Path) -> None:
            """Refuse."""
            if self.is_bad and operation in ("fsync", "truncate"):
                raise StorageError(errno.EIO, f"cannot {operation} {path}")

    disk = BadDisk()
    with LogWriter(disk, folder, TABLE) as writer:
        end = writer.append(one(1))
        disk.is_bad = True
        for timestamp in (2, 3):
            with pytest.raises(StorageError, match=r"nor cut off|cannot truncate"):
                writer.append(one(timestamp))
            assert writer.end == end
            assert not writer.is_current
        assert stamps(folder) == [1, 2]
        disk.is_bad = False
        writer.append(one(4))
        assert writer.is_current
    assert stamps(folder) == [1, 4]


@pytest.mark.parametrize("padding_bytes", [0, 256, 600])
def test_writers_take_turns(folder: Path, padding_bytes: int):
    """Each sees that others appended, catches up, and goes on; over segments too."""
    limits = {"segment_bytes_max": 1000, "padding_bytes": padding_bytes}
    writers = [LogWriter(LocalStorage(), folder, TABLE, **limits) for _ in range(3)]
    known: list[list[int]] = [[], [], []]
    for timestamp in range(1, 40):
        number = timestamp * timestamp % 5 % 3
        writer = writers[number]
        if not writer.is_current:
            tail = tail_of(folder, writer.end)
            known[number] += [commit.timestamp for commit in tail.commits]
            writer.close()
            writer = writers[number] = LogWriter(LocalStorage(), folder, TABLE, tail.end, **limits)
        assert writer.is_current
        writer.append(one(timestamp))
        known[number].append(timestamp)
        assert known[number] == list(range(1, timestamp + 1))
    for writer in writers:
        writer.close()
    assert stamps(folder) == list(range(1, 40))


def test_a_writer_never_cuts_off_a_frame_that_it_has_not_read(folder: Path):
    """Our own mistake, found before it does harm."""
    with (
        LogWriter(LocalStorage(), folder, TABLE) as first,
        LogWriter(LocalStorage(), folder, TABLE) as second,
    ):
        first.append(one(1))
        with pytest.raises(AssertionError, match="that the writer has not read"):
            second.append(one(2))
    assert stamps(folder) == [1]


def test_a_log_shorter_than_its_end_is_refused(folder: Path):
    """Appending would leave a hole."""
    with LogWriter(LocalStorage(), folder, TABLE) as writer:
        end = writer.append(one(1))
        os.truncate(segment_path(folder, 1), end.offset - 8)
        assert not writer.is_current
        message = (
            rf"{segment_path(folder, 1)}: {end.offset - 8} bytes, expected at least {end.offset}"
        )
        with pytest.raises(CorruptionError, match=message):
            writer.append(one(2))
    (segment_path(folder, 1)).write_bytes(b"kudulwal")
    with (
        pytest.raises(CorruptionError, match=r"1\.log: 8 bytes, expected at least 40"),
        LogWriter(LocalStorage(), folder, TABLE, end) as writer,
    ):
        writer.append(one(3))
    segment_path(folder, 1).unlink()
    with (
        pytest.raises(StorageError, match=r"cannot open .*1\.log: it does not exist"),
        LogWriter(LocalStorage(), folder, TABLE, end) as writer,
    ):
        writer.append(one(3))


def test_a_writer_opens_again_after_close(folder: Path):
    """Closing gives the descriptor back and nothing else."""
    writer = LogWriter(LocalStorage(), folder, TABLE)
    for timestamp in (1, 2, 3):
        writer.append(one(timestamp))
        writer.close()
        assert writer.is_current
    assert stamps(folder) == [1, 2, 3]


def test_a_reader_without_the_lock_follows_the_writer(folder: Path):
    """Up to the end in the lock file all frames are there, and all timestamps up to `last`."""
    lock_path = folder.with_name("lock")
    create_lock_file(lock_path)
    count = 150

    def write() -> None:
        with LogWriter(LocalStorage(), folder, TABLE, segment_bytes_max=4000) as writer:
            for timestamp in range(1, count + 1):
                with TableLock(lock_path, 5) as lock:
                    end = writer.append(one(timestamp))
                    lock.set_log_end(*end)
                    lock.advance_safe_timestamp(timestamp)

    thread = threading.Thread(target=write)
    thread.start()
    position, found = LOG_BEGIN, []
    while len(found) < count:
        state = read_lock_file(lock_path)
        if state.log_end is None:  # between the holder's bytes
            continue
        tail = tail_of(folder, position, LogPosition(*state.log_end))
        found += [commit.timestamp for commit in tail.commits]
        position = tail.end
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= state.safe_timestamp
        if not thread.is_alive() and len(found) < count:
            assert read_lock_file(lock_path).safe_timestamp == count
    thread.join()
