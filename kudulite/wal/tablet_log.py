"""Reading the log that each tablet of an older table has; nothing writes it any more.

Its segments are of format version 1 or 2, in the folder wal/ of the tablet (segment.py):

    header  := as of a table's log, with another version and salt
    salt    := random[8] in version 1; random[4]  tablet_crc32:u32le (of the tablet's id) in 2
    payload := record+
    record  := timestamp:u64le  rows (record_format.py)

Frames are those of a table's log (frame_format.py), and so are positions and torn ends.

Worked example, a record at timestamp 5, of the rows of record_format.py:

    0500000000000000 01000000 0100 00 00 a0000000 a0000000 00000000 00000000
    0200000000000000 ffffffff 88000000 … 0700000000000000

**Threads**: as those of `read_log`.
"""

from __future__ import annotations

import functools
import struct
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from kudulite.errors import CorruptionError
from kudulite.storage.storage import Storage
from kudulite.wal.log_reader import FrameReader
from kudulite.wal.record_format import Record, RecordDecoder
from kudulite.wal.segment import (
    LOG_BEGIN,
    TABLET_LOG_VERSIONS,
    LogPosition,
    SegmentHeader,
    parse_segment_header,
)

_TIMESTAMP = struct.Struct("<Q")


class TabletLogTail(NamedTuple):
    """The records that were read, in the order of the log, and the position after them."""

    records: list[Record]
    end: LogPosition


def read_tablet_log(
    storage: Storage,
    folder: Path,
    tablet_id: str,
    start: LogPosition,
    end: LogPosition | None,
    decoder: RecordDecoder,
    durable_end: LogPosition = LOG_BEGIN,
) -> TabletLogTail:
    """Return the records of a tablet's log from `start` to `end`, as `read_log` does commits."""
    records: list[Record] = []

    def decode(
        content: pa.Buffer, _view: memoryview, begin: int, stop: int, _end: LogPosition
    ) -> None:
        records.extend(decode_tablet_records(content.slice(begin, stop - begin), decoder))

    frames = FrameReader(
        storage, folder, functools.partial(_decode_header, tablet_id=tablet_id), decode
    )
    return TabletLogTail(records, frames.read(start, end, durable_end))


def decode_tablet_records(content: pa.Buffer, decoder: RecordDecoder) -> list[Record]:
    """Return the records that fill `content`; CorruptionError names the byte of a bad one."""
    records: list[Record] = []
    position = 0
    view = memoryview(content).cast("B")  # those of Arrow are of signed bytes
    while position < len(view):
        try:
            left = len(view) - position
            if left < _TIMESTAMP.size:
                raise CorruptionError(f"{left} bytes, expected at least {_TIMESTAMP.size}")
            (timestamp,) = _TIMESTAMP.unpack_from(view, position)
            begin = position + _TIMESTAMP.size
            record, length = decoder.decode_rows_at(timestamp, content, view, begin)
        except CorruptionError as error:
            raise CorruptionError(f"record at byte {position} of its frame: {error}") from error
        records.append(record)
        position = begin + length
    return records


def _decode_header(content: bytes, segment: int, tablet_id: str) -> SegmentHeader:
    version, header = parse_segment_header(content)
    if version not in TABLET_LOG_VERSIONS:
        raise CorruptionError(f"format version {version}, expected 1 or 2, as of a tablet's log")
    if version > 1:
        header.check_owner("tablet", tablet_id)
    header.check_number(segment)
    return header
