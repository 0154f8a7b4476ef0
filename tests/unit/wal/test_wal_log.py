"""A log that is written and read: round trip, positions, torn tails, damage, segments."""

from pathlib import Path

import pytest
from wal_changes import TWO_COLUMNS, inserts, same

from kudulite.fs.file_system import FileSystem
from kudulite.wal.format import SEGMENT_HEADER_BYTES
from kudulite.wal.wal_position import WAL_BEGIN, WalPosition, segment_path
from kudulite.wal.wal_reader import read_wal
from kudulite.wal.wal_writer import WalWriter

HEAD = SEGMENT_HEADER_BYTES


class Log:
    """A log with one record of three rows in each frame, timestamps from 1."""

    def __init__(self, folder: Path, frame_count: int, *, segment_bytes_max: int = 1 << 20) -> None:
        self.folder = folder
        self.records = [inserts(number + 1, [number] * 3) for number in range(frame_count)]
        with WalWriter(FileSystem(), folder, segment_bytes_max=segment_bytes_max) as writer:
            self.ends = [writer.append([record]) for record in self.records]

    @property
    def last_path(self) -> Path:
        """The file of the last segment."""
        return segment_path(self.folder, self.ends[-1].segment)

    def read(
        self, start=WAL_BEGIN, end=None, durable_end=WAL_BEGIN
    ) -> tuple[list[int], WalPosition]:
        """Timestamps of the records, each of which is as it was written, and the end."""
        tail = read_wal(self.folder, start, end, TWO_COLUMNS, durable_end)
        for record in tail.records:
            assert same(record, self.records[record.timestamp - 1])
        return [record.timestamp for record in tail.records], tail.end


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three frames in one segment."""
    return Log(tmp_path / "wal", 3)


@pytest.fixture
def rolled(tmp_path: Path) -> Log:
    """Seven frames in four segments, two in each."""
    return Log(tmp_path / "wal", 7, segment_bytes_max=900)


def test_what_is_appended_is_read(log: Log):
    """In order, from any position to any later one."""
    positions = [WAL_BEGIN, *log.ends]
    for i, start in enumerate(positions):
        assert log.read(start) == (list(range(i + 1, 4)), log.ends[-1])
        for j, end in enumerate(positions[i:], i):
            assert log.read(start, end) == (list(range(i + 1, j + 1)), end)
