"""Record: an entry of a chain of versions that adds rows and is no version.

    manifest/00000000000000000008.json := body line, then {"crc32": CRC of the body line} line

    {"record_version": 1, "table_id": …, "number": 8, "id": …, "version": 7, "timestamp": T,
     "previous_crc32": CRC of entry 7, "commits": base64 of commit* (wal/commit_format.py)}

`version` is the number of the newest version before it, and `timestamp` at or above those of its
commits. A record without commits says that no later entry has a time up to its own. One with
"is_end": true says that the table was deleted: nobody may follow it, but a recall. One with
"is_erased": true is in the place of an entry whose rows had to be gone. "asked_ms" is for how long
others are asked to append no rows, so that its writer can publish a version. `id` is random, so a
writer knows its own record when it reads it again; its first digits are those of the process.

**Invariants**: a record's timestamp is above that of the entry before it.
"""

from __future__ import annotations

import base64
import binascii
import functools
import uuid
from dataclasses import dataclass, field, replace
from os import getpid
from typing import Annotated

import pyarrow as pa

from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import (
    check_format_version,
    decode_checked_json,
    encode_checked_json,
    stored_crc32,
)
from kudulite.storage.json_form import JsonForm, Stored, readable
from kudulite.wal.commit_format import LoggedCommit, decode_commits
from kudulite.wal.segment import SEGMENT_HEADER_BYTES, LogPosition

RECORD_VERSION = 1  # on disk: a change of meaning raises it
_WRITER_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class RecordEntry(JsonForm):
    """A record; `file_crc32` is the CRC of its file, None before it is encoded."""

    table_id: str
    number: int
    id: str
    version: int
    timestamp: int
    previous_crc32: int
    commits: str
    is_end: Annotated[bool, Stored(may_be_absent=True)] = False
    is_erased: Annotated[bool, Stored(may_be_absent=True)] = False
    asked_ms: Annotated[int, Stored(may_be_absent=True)] = 0
    file_crc32: Annotated[int | None, Stored(is_kept=False)] = field(default=None, compare=False)

    @property
    def writer(self) -> str:
        """The digits of the process that made the record."""
        return self.id[:_WRITER_DIGITS]

    @staticmethod
    def text_of(commits: bytes) -> str:
        """Return commits, each of `encode_commit`, as a record has them."""
        return base64.b64encode(commits).decode()

    def encode(self) -> bytes:
        """Return the file's content."""
        return encode_checked_json({"record_version": RECORD_VERSION, **self.to_json()})

    @staticmethod
    def decode(content: bytes, source: str) -> RecordEntry | None:
        """Build a record from the content of the file `source`; None for a version.

        Raises FormatVersionError for a newer format, CorruptionError for anything unreadable.
        """
        if not content.startswith(b'{"record_version":'):
            return None
        body = decode_checked_json(content, source, "a record")
        with readable(source, "a record"):
            check_format_version(f"{source}: record", body["record_version"], RECORD_VERSION)
            return replace(RecordEntry.from_json(body), file_crc32=stored_crc32(content))

    def decode_commits(self, source: str) -> list[LoggedCommit]:
        """Return the commits. Raises CorruptionError."""
        commits: list[LoggedCommit] = []
        try:
            content = base64.b64decode(self.commits, validate=True)
        except binascii.Error as error:
            raise CorruptionError(f"{source}: commits that are no base64: {error}") from error
        with readable(source, "a record"):
            decode_commits(
                commits,
                pa.py_buffer(content),
                memoryview(content),
                0,
                len(content),
                position_after(self.number),
            )
        return commits


def new_record_id() -> str:
    """Return a new id: the digits of this process, then random ones."""
    return record_writer() + uuid.uuid4().hex[: 32 - _WRITER_DIGITS]


def record_writer() -> str:
    """Return the digits of this process in the ids of its records."""
    return _writer_of(getpid())


@functools.cache
def _writer_of(_process_id: int) -> str:
    return uuid.uuid4().hex[:_WRITER_DIGITS]


def position_after(number: int) -> LogPosition:
    """Return the position in the log behind an entry of the chain."""
    return LogPosition(number, SEGMENT_HEADER_BYTES)
