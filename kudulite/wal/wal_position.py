"""Places in a write-ahead log, and the names of its segment files.

Positions are ordered as the log is. (0, 0) is a log that has no segment yet; the first segment is
1. A position at or before the end of a segment's header means its first frame.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from kudulite.errors import CorruptionError
from kudulite.wal.format import SEGMENT_HEADER_BYTES

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")


class WalPosition(NamedTuple):
    """Byte `offset` in the file of `segment`: where a frame begins, or where the next one will."""

    segment: int
    offset: int

    def to_json(self) -> list[int]:
        """Return the JSON form: segment, offset."""
        return [self.segment, self.offset]

    @staticmethod
    def from_json(value: Any) -> WalPosition:
        """Build a position from `to_json`'s form; CorruptionError if it is not one."""
        if (
            not isinstance(value, list)
            or len(value) != 2
            or not all(type(number) is int and number >= 0 for number in value)
        ):
            raise CorruptionError(
                f"stored WAL position is {value!r}, expected [segment, offset], both 0 or more"
            )
        return WalPosition(*value)

    @property
    def first_frame(self) -> WalPosition:
        """The same place in the one form in which equal places compare equal."""
        return WalPosition(max(self.segment, 1), max(self.offset, SEGMENT_HEADER_BYTES))


WAL_BEGIN = WalPosition(0, 0)


def segment_name(segment: int) -> str:
    """Return the name of a segment's file."""
    return f"{segment:020d}.log"


def segment_path(folder: Path, segment: int) -> Path:
    """Return the file of one segment of the log in `folder`."""
    return folder / segment_name(segment)


def list_segments(folder: Path) -> list[int]:
    """Return the numbers of the segments that are there, ascending; none without a folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))
