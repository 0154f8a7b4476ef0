"""The array of bits that tells Spark which rows of files are excluded."""

import numpy as np
import pytest

from kudulite import NativeFile
from kudulite.storage.local_storage import LocalStorage
from kudulite_spark.native_read import excluded_bits, parts_of_distinct_sizes


def made_file(size_bytes: int, row_count: int, excluded: list[int]) -> NativeFile:
    """A file of so many bytes and rows."""
    positions = np.array(excluded, np.int64)
    storage = LocalStorage()
    return NativeFile("f", size_bytes, row_count, (), (), positions, storage=storage)


def looked_up(numbers: np.ndarray, count: int, file: NativeFile) -> list[int]:
    """The rows that Spark's expression finds excluded."""

    def get(at: int) -> int | None:
        assert -(1 << 31) <= at < 1 << 31, "Spark's arrays are indexed by int"
        return int(numbers[at]) if 0 <= at < len(numbers) else None

    found = []
    for row in range(file.row_count):
        start = get(file.size_bytes % count)
        assert start is not None
        number = get(start + (row >> 6))
        if number is not None and (number >> (row & 63)) & 1:
            found.append(row)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_row_is_found_excluded_if_it_is(seed):
    """In every file of a scan, among them files without excluded rows and files of one block."""
    random = np.random.default_rng(seed)
    sizes = random.choice(5000, random.integers(1, 30), replace=False) + 100
    files = []
    for size in sizes:
        row_count = int(random.choice([1, 63, 64, 65, 300]))
        chosen = random.choice(row_count, random.integers(0, row_count + 1), replace=False)
        files.append(made_file(int(size), row_count, sorted(chosen.tolist())))
    files += [made_file(7, 65, []), made_file(7, 300, [])]  # many small files are of one size
    numbers, count = excluded_bits(files)
    assert numbers.dtype == np.int64
    for file in files:
        assert looked_up(numbers, count, file) == file.excluded.tolist()


def test_files_of_one_part_have_different_sizes(monkeypatch):
    """Every file is in one part; no part has more files than the array's directory is made for."""
    monkeypatch.setattr("kudulite_spark.native_read.FILES_MAX", 3)
    files = [made_file(size, 1, [0]) for size in [5, 5, 6, 7, 8, 9, 5, 6, 10]]
    parts = parts_of_distinct_sizes(files)
    assert sorted(map(id, files)) == sorted(id(file) for part in parts for file in part)
    for part in parts:
        found = [file.size_bytes for file in part]
        assert len(set(found)) == len(found) <= 3
