"""Base data in a store: the rows are those of the file in a directory; requests are counted."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from kudulite.basefile.base_data import ROW_GROUP_ROWS, BaseDataFile
from kudulite.errors import CorruptionError
from kudulite.model import types
from kudulite.model.schema import Column
from kudulite.storage.object_storage import ObjectStorage
from kudulite.storage.range_source import TAIL_BYTES
from tests.support.doubles.counting_library import CountingLibrary
from tests.unit.basefile.test_base_data import read_all, write

ROOT = Path("memory:/bucket")
ROW_COUNT = 2 * ROW_GROUP_ROWS + 10_000


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> CountingLibrary:
    """The library, which counts."""
    return CountingLibrary.installed(monkeypatch)


def copied(file: BaseDataFile) -> BaseDataFile:
    """Return the same file in a store, not opened yet."""
    storage = ObjectStorage(MemoryStore(), ROOT)
    assert storage.put(ROOT / file.path.name, file.path.read_bytes()) == file.ref
    return BaseDataFile(storage, ROOT / file.path.name, file.ref)


def table_of(column_count: int) -> tuple[list[Column], pa.Table]:
    """Return rows of numbers, of text with few and with many values, and of arrays."""
    random_numbers = np.random.default_rng(1)
    kinds = [types.int64, types.string, types.double, types.string, types.array(types.int32)]
    few = pa.array(["a", "bc", "def"]).take(pa.array(random_numbers.integers(0, 3, ROW_COUNT)))
    offsets = pa.array(np.arange(ROW_COUNT + 1) * 2, pa.int32())
    items = pa.array(random_numbers.integers(0, 9, 2 * ROW_COUNT), pa.int32())
    arrays = [
        pa.array(random_numbers.permutation(ROW_COUNT)),
        few,
        pa.array(random_numbers.random(ROW_COUNT)),
        pa.array(np.char.mod("text-%d", random_numbers.permutation(ROW_COUNT))),
        pa.ListArray.from_arrays(offsets, items),
    ]
    numbers = range(column_count)
    columns = [Column(name=f"c{n}", type=kinds[n % 5], nullable=True, id=n) for n in numbers]
    schema = pa.schema([column.arrow_field for column in columns])
    return columns, pa.table([arrays[n % 5] for n in numbers], schema=schema)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> BaseDataFile:
    """A file of three row groups with ten columns, in a directory."""
    columns, table = table_of(10)
    return write(tmp_path_factory.mktemp("local"), table, columns)


def test_rows_of_a_store_are_those_of_a_directory(local: BaseDataFile):
    """Whole, by columns and row groups, by rows, by scattered rows; statistics and sizes."""
    remote, names = copied(local), local.schema.names
    assert read_all(remote).equals(read_all(local))
    assert remote.read([2, 0], ["c3", "c0"], use_threads=True).equals(
        local.read([2, 0], ["c3", "c0"])
    )
    picks = random.Random(1)
    for _ in range(20):
        start = picks.randrange(ROW_COUNT)
        stop = min(
            start + picks.choice([1, 100, 20_000]), (start // ROW_GROUP_ROWS + 1) * ROW_GROUP_ROWS
        )
        some = picks.sample(names, 4)
        stop = min(stop, ROW_COUNT)
        assert remote.read_rows(start, stop, some) == local.read_rows(start, stop, some)
        at = np.array(sorted(picks.sample(range(10_000), 7)))
        group = picks.randrange(3)
        assert remote.read_some(group, some, at) == local.read_some(group, some, at)
    for name in names:
        assert remote.statistics(1, name) == local.statistics(1, name)
        assert remote.encodings(name) == local.encodings(name)
    assert (remote.name_by_id, remote.row_count) == (local.name_by_id, local.row_count)


def test_a_footer_is_one_request_and_the_pages_of_a_row_are_another(
    local: BaseDataFile, library: CountingLibrary
):
    """The places of the pages are in front of the footer, which is kept."""
    file = copied(local)
    library.clear()
    assert file.row_count == ROW_COUNT
    assert (library.counts, library.round_count) == ({"get": 1}, 1)
    assert library.byte_count == TAIL_BYTES
    library.clear()
    flat = [
        name for name in file.schema.names if not pa.types.is_list(file.schema.field(name).type)
    ]
    assert file.read_rows(5_000, 5_001, flat) == local.read_rows(5_000, 5_001, flat)
    assert (library.counts, library.round_count) == ({"get_ranges": 1}, 1)
    assert library.byte_count < local.ref.length / 10
    library.clear()
    assert file.read_rows(ROW_GROUP_ROWS, ROW_GROUP_ROWS + 1, ["c0"]) == local.read_rows(
        ROW_GROUP_ROWS, ROW_GROUP_ROWS + 1, ["c0"]
    )
    assert (library.counts, library.round_count) == ({"get_ranges": 1}, 1)


def test_columns_of_row_groups_are_one_round(local: BaseDataFile, library: CountingLibrary):
    """No more bytes than their chunks have."""
    file = copied(local)
    _ = file.row_count
    library.clear()
    assert file.read([0, 1, 2], ["c1", "c0", "c7"]).num_rows == ROW_COUNT
    assert (library.counts, library.round_count) == ({"get_ranges": 1}, 1)
    metadata = file._opened.metadata
    groups = [metadata.row_group(number) for number in range(3)]
    sizes = [group.column(index).total_compressed_size for group in groups for index in (0, 1, 7)]
    assert library.byte_count == sum(sizes)


def test_a_long_footer_is_a_second_request(tmp_path: Path, library: CountingLibrary):
    """So are the places of the pages, those of all columns together."""
    columns, table = table_of(300)
    local = write(tmp_path, table.slice(0, ROW_GROUP_ROWS + 20_000), columns)
    file = copied(local)
    library.clear()
    assert file.row_count == ROW_GROUP_ROWS + 20_000
    assert len(file._opened.footer) > TAIL_BYTES
    assert (library.counts, library.round_count) == ({"get": 1, "get_ranges": 1}, 2)
    library.clear()
    names = [f"c{number}" for number in range(300) if number % 5 < 4]
    assert file.read_rows(9, 10, names) == local.read_rows(9, 10, names)
    assert library.round_count == 2
    assert library.counts["get_ranges"] == 2


def test_a_small_file_is_one_request(tmp_path: Path, library: CountingLibrary):
    """Its tail is all of it."""
    columns, table = table_of(5)
    local = write(tmp_path, table.slice(0, 100), columns)
    file = copied(local)
    library.clear()
    assert read_all(file).equals(read_all(local))
    assert file.read_rows(5, 6, ["c0"]) == local.read_rows(5, 6, ["c0"])
    assert library.counts == {"get": 1}


def test_damage_in_a_store_is_found(local: BaseDataFile):
    """A changed byte in a page, in the footer; an object that is another file."""
    content = local.path.read_bytes()
    storage = ObjectStorage(MemoryStore(), ROOT)
    for number, at in enumerate((1_000, len(content) // 2, len(content) - 3_000)):
        damaged = bytearray(content)
        damaged[at] ^= 0x55
        path = ROOT / str(number) / local.path.name
        storage.put(path, bytes(damaged))
        with pytest.raises(CorruptionError, match=f"memory:/bucket/{number}/"):
            read_all(BaseDataFile(storage, path, local.ref))
