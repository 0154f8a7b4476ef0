"""Positions in a log: their order, their stored form, the names of segments."""

from pathlib import Path

import pytest

from kudulite.errors import CorruptionError
from kudulite.storage.local_storage import LocalStorage
from kudulite.wal.segment import LOG_BEGIN, LogPosition, list_segments, segment_path


def test_positions_are_ordered_as_the_log_is():
    """By segment, then by byte; equal places compare equal in normal form."""
    assert LOG_BEGIN < LogPosition(1, 0) < LogPosition(1, 50) < LogPosition(2, 0)
    assert LOG_BEGIN.first_frame == LogPosition(1, 7).first_frame == LogPosition(1, 40)


def test_a_position_comes_back_from_json():
    """A value that is not a position is corruption; the error shows the value."""
    assert LogPosition.from_json(LogPosition(3, 1 << 40).to_json()) == LogPosition(3, 1 << 40)
    for stored in (None, [1], [1, 2, 3], [1, -1], [True, 0], ["1", 0], {"segment": 1}, "12"):
        with pytest.raises(CorruptionError, match=r"stored log position is .*, expected \[segment"):
            LogPosition.from_json(stored)


def test_only_segments_are_listed(tmp_path: Path):
    """Ascending; temporary files and strangers are not segments."""
    assert list_segments(LocalStorage(), tmp_path / "none") == []
    for number in (10, 9, 100):
        segment_path(tmp_path, number).touch()
    for name in (".00000000000000000001.log.ab", "1.log", "x.log", f"{1:020d}.log~"):
        (tmp_path / name).touch()
    assert list_segments(LocalStorage(), tmp_path) == [9, 10, 100]
