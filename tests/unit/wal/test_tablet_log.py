"""Logs of older tables: golden segments are read, and damage of them is found."""

import re
import shutil
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from kudulite.errors import CorruptionError
from kudulite.storage.local_storage import LocalStorage
from kudulite.wal import tablet_log
from kudulite.wal.frame_format import encode_frame
from kudulite.wal.log_reader import read_log
from kudulite.wal.record_format import Record, RecordDecoder, encode_rows
from kudulite.wal.row_codec import (
    CHANGE_DELETE,
    CHANGE_INSERT,
    CHANGE_UPDATE,
    RowChanges,
    RowCodec,
    RowList,
)
from kudulite.wal.segment import LOG_BEGIN, LogPosition, segment_path
from kudulite.wal.tablet_log import TabletLogTail, decode_tablet_records, read_tablet_log
from tests.support.tables.wal_changes import TWO_COLUMNS, damage, inserts, same
from tests.support.tiers import tiered

GOLDEN = Path(__file__).parent / "golden"
TABLET_ID = "5ad3a08e7f3b46b2879895d4a2aab54b"
ENDS = [LogPosition(1, 352), LogPosition(1, 736), LogPosition(2, 6616), LogPosition(3, 112)]
every_version = pytest.mark.parametrize("version", [1, 2])
# Bytes are damaged at each place, or in the quick tier at every thirteenth.
at_places = tiered("every", [13, 1], quick=1)
DECODER = RecordDecoder(TWO_COLUMNS)


def golden_records() -> list[Record]:
    """The records of the golden segments: two in the second frame, one in each other."""
    codec = RowCodec(TWO_COLUMNS)
    columns = {0: pa.array([1, 2, 3]), 1: pa.array(["a", None, None], pa.string())}
    ops = np.array([CHANGE_UPDATE, CHANGE_DELETE, CHANGE_UPDATE], np.uint8)
    cells = [(CHANGE_UPDATE, {"k": 3, "s": None}), (CHANGE_DELETE, {"k": 1})]
    return [
        inserts(1, [1, 2, 3]),
        RowChanges(2, ops, columns, {1: np.array([True, False, True])}),
        RowList(3, cells, codec),
        inserts(4, range(100, 600), "abc" * 5),
        RowList(5, [(CHANGE_INSERT, {"k": 7, "s": "é"})], codec),
    ]


def log_of(version: int, folder: Path) -> Path:
    """A copy of the golden log of a segment format."""
    place = folder / TABLET_ID / "wal"
    shutil.copytree(GOLDEN / f"segments-{version}" / TABLET_ID / "wal", place)
    return place


def tail_of(
    folder: Path, start: LogPosition = LOG_BEGIN, end: LogPosition | None = None
) -> TabletLogTail:
    """The log of the tablet."""
    return read_tablet_log(LocalStorage(), folder, TABLET_ID, start, end, DECODER)


@every_version
def test_golden_segments_are_read(version: int):
    """From any position to any later one: rows, columns, masks and LZ4."""
    folder = GOLDEN / f"segments-{version}" / TABLET_ID / "wal"
    expected = golden_records()
    starts = [0, 1, 3, 4, 5]
    positions = [LOG_BEGIN, *ENDS]
    for i, start in enumerate(positions):
        for j in range(i, len(positions)):
            tail = tail_of(folder, start, positions[j])
            wanted = expected[starts[i] : starts[j]]
            assert tail.end == positions[j]
            assert len(tail.records) == len(wanted)
            assert all(map(same, tail.records, wanted))
    assert tail_of(folder).end == ENDS[-1]
    assert len(tail_of(folder).records) == len(expected)


@every_version
@at_places
def test_every_flipped_byte_before_the_last_frame_is_corruption(
    version: int, every: int, tmp_path: Path
):
    """And in the last one it is a torn append."""
    folder = log_of(version, tmp_path)
    for segment in (1, 2, 3):
        path = segment_path(folder, segment)
        whole = path.read_bytes()
        for offset in range(0, len(whole), every):
            damage(path, offset)
            if segment == 3 and offset >= 40:
                assert len(tail_of(folder).records) == 4
            else:
                with pytest.raises(CorruptionError, match=rf"^{path}: "):
                    tail_of(folder)
            path.write_bytes(whole)


def test_a_segment_belongs_to_its_tablet(tmp_path: Path):
    """From format version 2 on: the salt of the first is random."""
    for version in (1, 2):
        folder = log_of(version, tmp_path / str(version))
        storage, other = LocalStorage(), TABLET_ID[::-1]
        if version == 1:
            assert read_tablet_log(storage, folder, other, LOG_BEGIN, None, DECODER).records
            continue
        with pytest.raises(CorruptionError, match="belongs to another tablet, expected tablet b45"):
            read_tablet_log(storage, folder, other, LOG_BEGIN, None, DECODER)


@every_version
def test_a_log_of_a_tablet_is_none_of_a_table(version: int):
    """Nor the other way round."""
    folder = GOLDEN / f"segments-{version}" / TABLET_ID / "wal"
    with pytest.raises(CorruptionError, match="is of the log of a tablet, expected that of table"):
        read_log(LocalStorage(), folder, TABLET_ID, LOG_BEGIN, None)


@pytest.mark.parametrize("version", [0, 3, 99])
def test_another_version_is_refused(version: int, tmp_path: Path):
    """Old logs have one of two."""
    folder = log_of(2, tmp_path)
    path = segment_path(folder, 1)
    content = bytearray(path.read_bytes())
    content[8] = version
    content[36:40] = zlib.crc32(content[:36]).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(CorruptionError, match=rf"{path}: format version {version}, expected 1 or"):
        tail_of(folder)


def test_a_right_checksum_does_not_excuse_a_wrong_record(tmp_path: Path):
    """A bad record with a right checksum is not torn; the error names frame and record."""
    folder = log_of(2, tmp_path)
    path, begin = segment_path(folder, 3), ENDS[-1].offset
    content = path.read_bytes()
    good = bytes(8) + encode_rows(inserts(4, [4]))
    bad = good[:12] + b"\0\0" + good[14:]
    path.write_bytes(content + encode_frame([good, bad], salt=content[28:36], offset=begin))
    message = rf"{path}: frame at byte {begin}: record at byte {len(good)} of its frame: "
    with pytest.raises(CorruptionError, match=message + "1 rows, 0 columns"):
        tail_of(folder)


def test_a_shortened_record_is_refused():
    """At every length; records follow each other."""
    one = (5).to_bytes(8, "little") + encode_rows(inserts(5, [1]))
    assert [r.timestamp for r in decode_tablet_records(pa.py_buffer(one * 2), DECODER)] == [5, 5]
    for length in range(1, len(one)):
        with pytest.raises(CorruptionError, match=rf"^record at byte {len(one)} of its frame: "):
            decode_tablet_records(pa.py_buffer(one + one[:length]), DECODER)


def test_the_worked_example_is_the_format():
    """The bytes of the module docstring."""
    changes = RowChanges(5, np.array([CHANGE_DELETE], np.uint8), {0: pa.array([7], pa.int8())})
    text = ((5).to_bytes(8, "little") + encode_rows(changes)).hex()
    example = re.search(r"\n    05000000.*?\n\n", tablet_log.__doc__, re.DOTALL)[0]
    begin, end = "".join(example.split()).split("…")
    assert text.startswith(begin)
    assert text.endswith(end)
