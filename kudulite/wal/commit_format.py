"""Format of a commit: the records of all tablets that a write changed, and what the write was.

The payload of each frame (frame_format.py) of a table's log is one or more commits:

    commit    := timestamp:u64le  part_count:u32le  info_length:u32le  info[info_length]  pad
                 part_head[part_count]  rows[part_count]
    part_head := tablet_id[16]  rows_length:u32le  zero:u32le
    rows      := the record of one tablet (record_format.py), a multiple of 8 bytes

`tablet_id` is the bytes of the uuid whose 32 hex digits are the tablet's id; a commit has a tablet
at most once. `info` is a CommitInfo as JSON in UTF-8, with members for all fields that are not
None; unknown members are ignored. It has no bytes where nobody lists the commit: a session's write
of rows. A commit without parts, of an application version that changes no row, has an info. `pad`
is zero bytes up to a multiple of 8.

Worked example, timestamp 5, no info; of tablet 000102…0f, a record of 8 bytes "aaaaaaaa":

    0500000000000000 01000000 00000000
    000102030405060708090a0b0c0d0e0f 08000000 00000000
    6161616161616161

Records stay encoded until a tablet is asked for, so a reader of one tablet pays for no other.

**Invariants**: (1) `decode_commits` returns the commits that `encode_commit` encoded, for other
bytes it raises CorruptionError, or returns commits whose parts lie within them; (2) a commit is in
one frame, so a reader finds all of its parts or none.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pyarrow as pa

from kudulite.errors import CorruptionError
from kudulite.storage.json_form import JsonForm, Stored, readable
from kudulite.wal.frame_format import ALIGNMENT_BYTES, PAYLOAD_BYTES_MAX, aligned, padding
from kudulite.wal.row_codec import RecordSizeError
from kudulite.wal.segment import LogPosition

_FIXED = struct.Struct("<QII")
_PART_HEAD = struct.Struct("<16sII")
_ONE_PART = struct.Struct("<QII16sII")  # a commit of one part without an info, up to its rows
TABLET_ID_BYTES = 16
_TABLETS_KEPT_MAX = 4096


@dataclass(frozen=True)
class CommitInfo(JsonForm):
    """The description of a commit that is listed: its operation, row counts, and origin.

    `application_version` is the number of the write in the series `application_id`, and `writer` is
    user@host:pid.
    """

    commit_id: str
    operation: str
    message: Annotated[str | None, Stored(may_be_none=True)] = None
    application_id: Annotated[str | None, Stored(may_be_none=True)] = None
    application_version: Annotated[int | None, Stored(may_be_none=True, is_signed=True)] = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    ignored: int = 0
    writer: Annotated[str | None, Stored(may_be_none=True)] = None


class LoggedCommit(NamedTuple):
    """A commit as the log has it; `parts` has the encoded rows by tablet id.

    The buffers are views of the bytes that were read. `end` is the position behind its frame.
    """

    timestamp: int
    info: CommitInfo | None
    parts: Mapping[str, pa.Buffer]
    end: LogPosition


def encode_commit(
    timestamp: int, parts: Mapping[str, bytes], info: CommitInfo | None = None
) -> bytes:
    """Return the bytes of a commit of the rows by tablet id, each of `encode_rows`.

    Without parts it must have an info. Raises RecordSizeError if no frame can hold it.
    """
    if info is None:
        assert parts, "a commit of no rows that nobody lists"
        encoded = [_FIXED.pack(timestamp, len(parts), 0)]
    else:
        text = info.json_text.encode()
        encoded = [_FIXED.pack(timestamp, len(parts), len(text)), text, padding(len(text))]
    for tablet_id, rows in parts.items():
        encoded.append(_PART_HEAD.pack(_stored_id(tablet_id), len(rows), 0))
    encoded += parts.values()
    commit = b"".join(encoded)
    if len(commit) > PAYLOAD_BYTES_MAX:
        raise RecordSizeError(f"{len(commit):,} bytes, at most {PAYLOAD_BYTES_MAX:,}")
    assert len(commit) % ALIGNMENT_BYTES == 0
    return commit


def decode_commits(
    commits: list[LoggedCommit],
    content: pa.Buffer,
    view: memoryview,
    begin: int,
    end: int,
    frame_end: LogPosition,
) -> None:
    """Add the commits that fill the bytes [begin, end) of `content`, the payload of a frame.

    `view` is of the bytes of `content`, made once for many frames, and `frame_end` the frame's end
    in the log. CorruptionError names the byte of a bad commit.
    """
    position = begin
    while position < end:
        # A session may write a commit for each row: those of one part are decoded here.
        at = position + _ONE_PART.size
        if at < end:
            timestamp, part_count, info_length, tablet, length, zero = _ONE_PART.unpack_from(
                view, position
            )
            is_one = part_count == 1 and not info_length and length and not zero
            if is_one and not length % ALIGNMENT_BYTES and at + length <= end:
                parts = {_tablet_id(tablet): content.slice(at, length)}
                commits.append(LoggedCommit(timestamp, None, parts, frame_end))
                position = at + length
                continue
        try:
            commit, position = _decode_commit(content, view, position, end, frame_end)
        except CorruptionError as error:
            raise CorruptionError(
                f"commit at byte {position - begin} of its frame: {error}"
            ) from error
        commits.append(commit)


def _decode_commit(
    content: pa.Buffer, view: memoryview, begin: int, end: int, frame_end: LogPosition
) -> tuple[LoggedCommit, int]:
    """Return (the commit at byte `begin`, its end)."""
    if end - begin < _FIXED.size:
        raise CorruptionError(f"{end - begin} bytes, expected at least {_FIXED.size}")
    timestamp, part_count, info_length = _FIXED.unpack_from(view, begin)
    info, heads_begin = None, begin + _FIXED.size
    if info_length:
        info_end = heads_begin + info_length
        info = _decode_info(view[heads_begin : min(info_end, end)], info_length)
        heads_begin += aligned(info_length)
        if any(view[info_end:heads_begin]):
            raise CorruptionError(f"byte {info_end - begin}: padding that is not zero")
    elif not part_count:
        raise CorruptionError("no parts and no info, expected one of them")
    at = heads_begin + part_count * _PART_HEAD.size
    if at > end:
        raise CorruptionError(f"{end - begin} bytes, expected {at - begin} for {part_count} parts")
    parts: dict[str, pa.Buffer] = {}
    for tablet, length, zero in _PART_HEAD.iter_unpack(view[heads_begin:at]):
        if zero or not length or length % ALIGNMENT_BYTES or length > end - at:
            raise _wrong_part(len(parts), length, zero, end - at)
        parts[_tablet_id(tablet)] = content.slice(at, length)
        at += length
    if len(parts) != part_count:
        raise CorruptionError(f"{part_count} parts of {len(parts)} tablets, expected each once")
    return LoggedCommit(timestamp, info, parts, frame_end), at


def _wrong_part(number: int, length: int, zero: int, left: int) -> CorruptionError:
    return CorruptionError(
        f"part {number} has {length} bytes of rows, then {zero}; expected a multiple of"
        f" {ALIGNMENT_BYTES} from {ALIGNMENT_BYTES} to {left}, then 0"
    )


@functools.lru_cache(_TABLETS_KEPT_MAX)
def _stored_id(tablet_id: str) -> bytes:
    stored = bytes.fromhex(tablet_id)
    assert len(stored) == TABLET_ID_BYTES, tablet_id
    return stored


@functools.lru_cache(_TABLETS_KEPT_MAX)
def _tablet_id(stored: bytes) -> str:
    """Return a tablet's id, the same object for many commits."""
    return stored.hex()


def _decode_info(stored: memoryview, length: int) -> CommitInfo:
    if len(stored) < length:
        raise CorruptionError(f"info of {len(stored)} bytes, expected {length}")
    with readable(f"info at byte {_FIXED.size}", "the info of a commit"):
        return CommitInfo.from_json(json.loads(bytes(stored).decode()))
