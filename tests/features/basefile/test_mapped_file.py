"""Opening immutable files: what it costs in descriptors and maps of the process."""

import os
from pathlib import Path

import pytest

from kudulite.errors import CorruptionError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import MAPPED_BYTES_MIN, FileRef
from tests.support.tables.core_tables import descriptors_below, maps_below


@pytest.mark.parametrize(
    ("length", "map_count"), [(0, 0), (1, 0), (MAPPED_BYTES_MIN, 0), (MAPPED_BYTES_MIN + 1, 1)]
)
def test_a_file_keeps_no_descriptor_and_only_a_large_one_a_map(
    tmp_path: Path, length: int, map_count: int
):
    """Descriptors and maps are counted. The content can be read after the file was removed."""
    path, content = tmp_path / "file", os.urandom(length)
    path.write_bytes(content)
    ref = FileRef("file", length, 0)
    file = LocalStorage().open(path, ref)
    assert (maps_below(tmp_path), descriptors_below(tmp_path)) == (map_count, 0)
    assert LocalStorage().kept_bytes(ref) == min(length, MAPPED_BYTES_MIN)
    path.unlink()
    assert file.read_at(length, 0) == content
    del file
    assert maps_below(tmp_path) == 0


def test_a_file_of_another_length_is_refused(tmp_path: Path):
    """Both lengths are said."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    with pytest.raises(CorruptionError, match="file: 3 bytes on disk, expected 4"):
        LocalStorage().open(path, FileRef("file", 4, 0))
