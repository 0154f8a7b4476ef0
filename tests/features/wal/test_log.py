"""A log that is written and read: round trip, positions, torn tails, damage, segments."""

import os
import zlib
from pathlib import Path

import pytest

from kudulite.errors import CorruptionError, FormatVersionError
from kudulite.storage.local_storage import LocalStorage
from kudulite.wal.commit_format import CommitInfo, encode_commit
from kudulite.wal.frame_format import FRAME_HEADER_BYTES, encode_frame
from kudulite.wal.log_reader import read_log
from kudulite.wal.log_writer import LogWriter
from kudulite.wal.record_format import RecordDecoder, encode_rows
from kudulite.wal.segment import (
    LOG_BEGIN,
    SEGMENT_HEADER_BYTES,
    LogPosition,
    SegmentHeader,
    encode_segment_header,
    list_segments,
    segment_path,
)
from tests.support.tables.wal_changes import (
    SECOND_TABLET,
    TABLE,
    TABLET,
    TWO_COLUMNS,
    commit_of,
    damage,
    inserts,
    records_of,
    same,
)
from tests.support.tiers import tiered

HEAD = SEGMENT_HEADER_BYTES
# Bytes are damaged and files are cut at each place, or in the quick tier at every eleventh.
at_places = tiered("every", [11, 1], quick=1)


class Log:
    """A log with one commit of three rows in each frame, timestamps from 1."""

    def __init__(self, folder: Path, frame_count: int, *, segment_bytes_max: int = 1 << 20) -> None:
        self.folder = folder
        self.records = [inserts(number + 1, [number] * 3) for number in range(frame_count)]
        with LogWriter(
            LocalStorage(), folder, TABLE, segment_bytes_max=segment_bytes_max
        ) as writer:
            self.ends = [writer.append([commit_of(record)]) for record in self.records]

    @property
    def last_path(self) -> Path:
        """The file of the last segment."""
        return segment_path(self.folder, self.ends[-1].segment)

    def read(
        self,
        start: LogPosition = LOG_BEGIN,
        end: LogPosition | None = None,
        durable_end: LogPosition = LOG_BEGIN,
    ) -> tuple[list[int], LogPosition]:
        """Timestamps of the commits, each of which is as it was written, and the end."""
        tail = read_log(LocalStorage(), self.folder, TABLE, start, end, durable_end)
        for record in records_of(tail.commits, TWO_COLUMNS):
            assert same(record, self.records[record.timestamp - 1])
        return [commit.timestamp for commit in tail.commits], tail.end


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Three frames in one segment."""
    return Log(tmp_path / "log", 3)


@pytest.fixture
def rolled(tmp_path: Path) -> Log:
    """Seven frames in four segments: two, two, two, one."""
    rolled = Log(tmp_path / "log", 7, segment_bytes_max=1000)
    assert [end.segment for end in rolled.ends] == [1, 1, 2, 2, 3, 3, 4]
    return rolled


# -- positions


@pytest.mark.parametrize("name", ["log", "rolled"])
def test_what_is_appended_is_read(name: str, request: pytest.FixtureRequest):
    """In order, from any position to any later one, in one segment and over several."""
    log = request.getfixturevalue(name)
    count = len(log.records)
    positions = [LOG_BEGIN, *log.ends]
    for i, start in enumerate(positions):
        assert log.read(start) == (list(range(i + 1, count + 1)), log.ends[-1])
        for j, end in enumerate(positions[i:], i):
            assert log.read(start, end) == (list(range(i + 1, j + 1)), end)


def test_an_end_before_the_start_reads_nothing(rolled: Log):
    """All that the reader may see is in rowsets already."""
    for end in (LOG_BEGIN, *rolled.ends[:3]):
        assert rolled.read(rolled.ends[2], end) == ([], rolled.ends[2])


def test_positions_within_a_header_mean_the_first_frame(rolled: Log):
    """Also where the log begins, and where a segment does."""
    for offset in (0, 1, HEAD):
        assert rolled.read(LogPosition(1, offset))[0] == [1, 2, 3, 4, 5, 6, 7]
        assert rolled.read(LogPosition(3, offset))[0] == [5, 6, 7]
        assert rolled.read(end=LogPosition(3, offset))[0] == [1, 2, 3, 4]


def test_a_log_without_segments_is_empty(tmp_path: Path):
    """No folder, an empty one, and a segment that is still to be made."""
    for start in (LOG_BEGIN, LogPosition(1, 0), LogPosition(5, HEAD)):
        assert read_log(LocalStorage(), tmp_path / "none", TABLE, start, None).end == start
        assert read_log(LocalStorage(), tmp_path, TABLE, start, None).commits == []


def test_several_commits_of_one_frame_are_read_in_order(tmp_path: Path):
    """Group commit: one end for all."""
    records = [inserts(1, [1]), inserts(2, [2, 3]), inserts(2, range(500))]
    with LogWriter(LocalStorage(), tmp_path / "log", TABLE) as writer:
        writer.append([commit_of(record) for record in records])
        tail = read_log(LocalStorage(), tmp_path / "log", TABLE, LOG_BEGIN, None)
        assert tail.end == writer.end
    assert all(map(same, records_of(tail.commits, TWO_COLUMNS), records))


# -- torn tails


@at_places
def test_a_torn_last_frame_is_left_out_at_every_length(rolled: Log, every: int):
    """Cut anywhere within it, the frames before it are the log."""
    before, whole = rolled.ends[-2], rolled.last_path.read_bytes()
    assert before.segment < rolled.ends[-1].segment
    log_ends = LogPosition(rolled.ends[-1].segment, HEAD)
    for length in range(HEAD, len(whole), every):
        rolled.last_path.write_bytes(whole[:length])
        assert rolled.read() == ([1, 2, 3, 4, 5, 6], log_ends)
        assert rolled.read(before, before) == ([], before)
        with pytest.raises(CorruptionError, match=rf"{rolled.last_path}: {length} bytes"):
            rolled.read(end=rolled.ends[-1])


@at_places
def test_every_damage_of_the_last_frame_is_a_torn_append(log: Log, every: int):
    """Blocks of a file reach the disk in any order: other bytes, zeros, or more than there were."""
    whole = log.last_path.read_bytes()
    begin = log.ends[-2].offset
    for offset in range(begin, len(whole), every):
        damage(log.last_path, offset)
        assert log.read() == ([1, 2], log.ends[-2])
        log.last_path.write_bytes(whole)
    for zeros in (1, 16, 100_000):
        log.last_path.write_bytes(whole + bytes(zeros))
        assert log.read() == ([1, 2, 3], log.ends[-1])
        log.last_path.write_bytes(whole[:begin] + bytes(zeros))
        assert log.read() == ([1, 2], log.ends[-2])


@at_places
def test_below_the_durable_end_nothing_is_torn(log: Log, every: int):
    """A reader that knows a frame to be durable finds it, or gets an error with the path."""
    whole = log.last_path.read_bytes()
    for offset in range(log.ends[-2].offset, len(whole), every):
        damage(log.last_path, offset)
        with pytest.raises(CorruptionError, match=rf"{log.last_path}: frame at byte \d+: "):
            log.read(durable_end=log.ends[-1])
        log.last_path.write_bytes(whole)
    for length in range(HEAD, len(whole), every):
        log.last_path.write_bytes(whole[:length])
        with pytest.raises(CorruptionError, match=str(log.last_path)):
            log.read(durable_end=log.ends[-1])
    log.last_path.write_bytes(whole[:-1])
    assert log.read(durable_end=log.ends[-2])[0] == [1, 2]


@pytest.mark.parametrize("end", [LogPosition(1, HEAD + 8), LogPosition(2, 0), LogPosition(9, 999)])
def test_a_log_that_ends_before_its_durable_end_is_refused(tmp_path: Path, end: LogPosition):
    """Also when whole segments are gone."""
    (tmp_path / "log").mkdir()
    message = rf"0+1\.log: the log ends at byte 0, expected at least byte {end.offset} of segment"
    with pytest.raises(CorruptionError, match=message):
        read_log(LocalStorage(), tmp_path / "log", TABLE, LOG_BEGIN, None, end)


def test_what_a_user_stored_is_no_frame(tmp_path: Path):
    """A torn frame is torn also where its values hold frames, of this log even."""
    with LogWriter(LocalStorage(), tmp_path / "log", TABLE) as writer:
        writer.append([commit_of(inserts(1, [1]))])
        path = segment_path(tmp_path / "log", 1)
        stored = path.read_bytes()[HEAD:].decode("latin-1")
        end = writer.append([commit_of(inserts(2, [2], stored))])
    os.truncate(path, end.offset - 8)
    tail = read_log(LocalStorage(), tmp_path / "log", TABLE, LOG_BEGIN, None)
    assert [commit.timestamp for commit in tail.commits] == [1]


# -- damage


@at_places
def test_every_flipped_byte_before_the_last_frame_is_corruption(rolled: Log, every: int):
    """In any segment, header or frame; the error names the file, reading with an end or without."""
    begin_of_last = rolled.ends[-1].segment, HEAD
    for segment in list_segments(LocalStorage(), rolled.folder):
        path = segment_path(rolled.folder, segment)
        whole = path.read_bytes()
        end_of_damage = HEAD if (segment, HEAD) == begin_of_last else len(whole)
        for offset in range(0, end_of_damage, every):
            damage(path, offset, 1 << offset % 8)
            for end in (None, rolled.ends[-1]):
                with pytest.raises(CorruptionError, match=rf"{path}: "):
                    rolled.read(end=end)
            path.write_bytes(whole)
    assert rolled.read()[0] == [1, 2, 3, 4, 5, 6, 7]


def test_a_damaged_frame_between_good_ones_is_named_with_its_place(log: Log):
    """Path, byte, what was found, what was expected."""
    offset = log.ends[0].offset
    damage(log.last_path, offset + FRAME_HEADER_BYTES)
    message = rf"{log.last_path}: frame at byte {offset}: payload CRC 0x\w+, expected 0x\w+"
    for end in (None, log.ends[-1]):
        with pytest.raises(CorruptionError, match=message):
            log.read(end=end)
    damage(log.last_path, offset + 4)
    with pytest.raises(
        CorruptionError, match=rf"frame at byte {offset}: header CRC 0x\w+, expected"
    ):
        log.read()
    damage(log.last_path, offset)
    with pytest.raises(
        CorruptionError, match=rf"frame at byte {offset}: it starts with b'\\xb4LWF'"
    ):
        log.read()
    # Frames before the damage can be read by who needs no more.
    assert log.read(end=log.ends[0])[0] == [1]
    assert log.read(log.ends[1])[0] == [3]


@pytest.mark.parametrize("cut", ["tail", "frame", "all frames", "header"])
def test_a_closed_segment_has_no_torn_end(rolled: Log, cut: str):
    """The next segment says how long it was; at a frame's border too."""
    path = segment_path(rolled.folder, 2)
    length = {
        "tail": rolled.ends[3].offset - 1,
        "frame": rolled.ends[2].offset,
        "all frames": HEAD,
        "header": 7,
    }[cut]
    os.truncate(path, length)
    with pytest.raises(CorruptionError, match=rf"{path}: "):
        rolled.read()
    assert rolled.read(LogPosition(3, 0))[0] == [5, 6, 7]


def test_a_missing_segment_is_corruption(rolled: Log):
    """In the middle, at the start, at the end that was named; not before the start."""
    path = segment_path(rolled.folder, 3)
    path.unlink()
    for start, end in ((LOG_BEGIN, None), (LogPosition(3, 0), None), (LOG_BEGIN, rolled.ends[-1])):
        with pytest.raises(CorruptionError, match=rf"{path}: the log segment is missing"):
            rolled.read(start, end)
    assert rolled.read(LogPosition(4, 0))[0] == [7]
    assert rolled.read(end=rolled.ends[3])[0] == [1, 2, 3, 4]
    for segment in list_segments(LocalStorage(), rolled.folder):
        segment_path(rolled.folder, segment).unlink()
    with pytest.raises(CorruptionError, match=r"0+4\.log: the log segment is missing"):
        rolled.read(rolled.ends[-1])


def test_a_segment_of_another_place_is_refused(rolled: Log):
    """Renamed, copied over, or of a newer format: all say what they are."""
    second, third = (segment_path(rolled.folder, number) for number in (2, 3))
    third.write_bytes(second.read_bytes())
    with pytest.raises(CorruptionError, match=rf"{third}: says it is segment 2, expected 3"):
        rolled.read()
    third.write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(CorruptionError, match=rf"{third}: starts with b'PAR1"):
        rolled.read()


def test_a_newer_format_is_refused(log: Log):
    """With both versions; the checksum is right, so it is no damage."""
    header = bytearray(encode_segment_header(SegmentHeader(1, 0, bytes(8))))
    header[8] = 9
    crc = zlib.crc32(header[:-4]).to_bytes(4, "little")
    log.last_path.write_bytes(bytes(header[:-4]) + crc)
    with pytest.raises(FormatVersionError, match=r"format version 9, this kudulite reads 3"):
        log.read()


def test_a_right_checksum_does_not_excuse_a_wrong_commit(log: Log):
    """A bad commit with a right checksum is not torn; the error names frame and commit."""
    content = log.last_path.read_bytes()
    salt, begin = content[28:36], log.ends[-1].offset
    good = commit_of(inserts(4, [4]))
    bad = good[:8] + b"\0" + good[9:]
    log.last_path.write_bytes(content + encode_frame([good, bad], salt=salt, offset=begin))
    message = rf"{log.last_path}: frame at byte {begin}: commit at byte {len(good)} of its frame: "
    with pytest.raises(CorruptionError, match=message + "no parts and no info"):
        log.read()
    assert log.read(end=log.ends[-1])[0] == [1, 2, 3]


def test_a_segment_of_another_table_is_refused(log: Log):
    """Also by a writer, which would continue in it."""
    other = "8" * 32
    message = rf"{log.last_path}: belongs to another table, expected table {other}"
    with pytest.raises(CorruptionError, match=message):
        read_log(LocalStorage(), log.folder, other, LOG_BEGIN, None)
    with (
        pytest.raises(CorruptionError, match=message),
        LogWriter(LocalStorage(), log.folder, other, log.ends[-1]) as writer,
    ):
        writer.append([commit_of(inserts(4, [4]))])


# -- commits of several tablets


def test_a_reader_of_one_tablet_decodes_no_other(log: Log):
    """A damaged record of another tablet is not looked at; its own comes back."""
    content = log.last_path.read_bytes()
    salt, begin = content[28:36], log.ends[-1].offset
    record = inserts(4, range(3))
    parts = {TABLET: encode_rows(record), SECOND_TABLET: bytes(8)}
    info = CommitInfo("c1", "INSERT", "first load", inserted=3)
    commit = encode_commit(4, parts, info)
    log.last_path.write_bytes(content + encode_frame([commit], salt=salt, offset=begin))
    (found,) = read_log(LocalStorage(), log.folder, TABLE, log.ends[-1], None).commits
    decoder = RecordDecoder(TWO_COLUMNS)
    assert (found.timestamp, found.info, list(found.parts)) == (4, info, [TABLET, SECOND_TABLET])
    assert same(decoder.decode_rows(4, found.parts[TABLET]), record)
    with pytest.raises(CorruptionError, match="expected at least"):
        decoder.decode_rows(4, found.parts[SECOND_TABLET])
