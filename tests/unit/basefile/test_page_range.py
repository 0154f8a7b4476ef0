"""Page ranges: short reads of base data equal whole ones, and damage of the index is found."""

import decimal
import itertools
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kudulite.basefile.base_data import CUT_ROWS_MAX, ROW_GROUP_ROWS, BaseDataFile
from kudulite.basefile.block_cache import VerifiedParts
from kudulite.basefile.footer import footer_bounds
from kudulite.basefile.page_range import PAGE_ROWS, PageDirectory, PageIndexError
from kudulite.errors import CorruptionError
from kudulite.model import types
from kudulite.model.schema import Column, encodings_of
from kudulite.storage.local_storage import LocalSource, LocalStorage
from kudulite.storage.storage import FileRef
from tests.support.machines.file_mutations import checked_footer
from tests.support.tables.core_tables import group_rows_of
from tests.unit.basefile.test_base_data import (
    ALL_TYPES,
    NULL_PATTERNS,
    bits,
    values_of,
    with_nulls,
    write,
)


def whole(file, name):
    """One column of a file, read by row groups."""
    groups = range(file.row_group_count)
    return file.read(list(groups), [name]).column(name).combine_chunks()


def assert_range(file, columns, start, stop):
    """A short read gives what a whole one does."""
    names = [column.name for column in columns]
    for name, values in zip(names, file.read_rows(start, stop, names), strict=True):
        expected = whole(file, name).slice(start, stop - start)
        assert values.type == expected.type
        assert bits(values) == bits(expected), (name, start, stop)


@pytest.mark.parametrize("column_type", ALL_TYPES, ids=str)
def test_short_reads_equal_whole_ones(tmp_path, column_type):
    """With every encoding and with nulls, at the borders of pages and within them."""
    rng = np.random.default_rng(len(str(column_type)))
    count = 100
    with group_rows_of(16):
        columns, arrays = [], []
        for encoding in encodings_of(column_type):
            for pattern in NULL_PATTERNS:
                values = values_of(column_type, count, seed=len(columns), distinct=7)
                column = Column(
                    name=f"c{len(columns)}",
                    type=column_type,
                    nullable=True,
                    id=len(columns),
                    encoding=encoding,
                )
                columns.append(column)
                arrays.append(with_nulls(values, pattern, seed=len(columns)))
        table = pa.table(arrays, schema=pa.schema([column.arrow_field for column in columns]))
        file = write(tmp_path, table, columns)
        for start, stop in ((0, 1), (15, 16), (16, 20), (19, 21), (96, 100), (3, 13), (0, 16)):
            assert_range(file, columns, start, stop)
        start = int(rng.integers(0, 90))
        stop = min(start + 5, (start // 16 + 1) * 16)
        assert_range(file, columns[::2][::-1], start, stop)


def wide_table():
    """Two row groups of numbers, of text whose pages are cut by bytes, of lists and of nulls."""
    count = ROW_GROUP_ROWS + 20_000
    rng = np.random.default_rng(1)
    columns = [
        Column(name="id", type=types.int64, nullable=False, id=0),
        Column(name="text", type=types.string, nullable=True, id=1, compression="none"),
        Column(name="list", type=types.array(types.int32), nullable=True, id=2),
        Column(name="few", type=types.string, nullable=False, id=3),
    ]
    texts = pa.array([None if i % 97 == 0 else f"{i:08}" * 18 for i in range(count)])
    offsets = pa.array(np.arange(count + 1) * 2, pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 9, 2 * count), pa.int32()))
    few = pa.array(np.array(["a", "bc", "def"])[rng.integers(0, 3, count)])
    fields = pa.schema([column.arrow_field for column in columns])
    return columns, pa.table([np.arange(count), texts, lists, few], schema=fields)


def test_pages_of_columns_may_begin_at_different_rows(tmp_path):
    """Wide cells fill a page before it has all rows; arrays are read by row group."""
    columns, table = wide_table()
    file = write(tmp_path, table, columns)
    assert [file.short_unit(id) for id in range(4)] == [
        PAGE_ROWS,
        PAGE_ROWS,
        ROW_GROUP_ROWS,
        PAGE_ROWS,
    ]
    directory = directory_of(file)
    first_rows = [directory.covering(0, at, 0, 1).pages.first_rows for at in (0, 1)]
    assert len(first_rows[1]) > len(first_rows[0]) == ROW_GROUP_ROWS // PAGE_ROWS + 1
    border = ROW_GROUP_ROWS
    for start, stop in (
        (5000, 6000),
        (8000, 8300),
        (border - 7, border),
        (border, border + 9),
        (border + 19_990, border + 20_000),
        (1, 1 + CUT_ROWS_MAX),
        (0, border),
    ):
        assert_range(file, columns, start, stop)


@pytest.fixture
def decoded(monkeypatch):
    """The rows of each decoded page range or row group, and whether checksums were verified."""
    found, reader = [], pq.ParquetFile

    def noted(*args, **options):
        opened = reader(*args, **options)
        if "page_checksum_verification" in options:  # otherwise a footer is read
            found.append((opened.metadata.num_rows, options["page_checksum_verification"]))
        return opened

    monkeypatch.setattr(pq, "ParquetFile", noted)
    return found


@pytest.mark.parametrize("use_threads", [False, True])
def test_rows_of_a_row_group_are_read_by_their_pages(tmp_path, decoded, use_threads):
    """In any order and repeated, where columns have different pages, and where most are needed."""
    columns, table = wide_table()
    file, rng = write(tmp_path, table, columns), np.random.default_rng(3)
    names, count = [column.name for column in columns], ROW_GROUP_ROWS
    for at in (
        np.array([5]),
        np.array([9000, 5, 9001, 5, 8191]),
        np.array([count - 1, 0, 60_000]),
        rng.integers(0, count // 2, 40),
        rng.integers(0, count, 2000),
    ):
        read = file.read_some(0, names, at, use_threads)
        assert [a.type for a in read] == [field.type for field in table.schema]
        expected = table.slice(0, count).take(pa.array(at))
        assert pa.table(read, schema=table.schema).equals(expected.combine_chunks())
    decoded.clear()
    file.read_some(0, ["id", "few"], np.array([3 * PAGE_ROWS, 5, 3 * PAGE_ROWS + 1]))
    file.read_some(0, ["id", "few"], np.arange(0, count, PAGE_ROWS))
    assert [rows for rows, _ in decoded] == [2 * PAGE_ROWS, table.num_rows]


def test_pages_behind_a_full_dictionary_are_cut_without_it(tmp_path):
    """Parquet would decode it, although the pages have plain values."""
    column = Column(0, "c", types.string, nullable=False, encoding="dict", compression="none")
    texts = pa.array([f"{number:06}" * 12 for number in range(ROW_GROUP_ROWS)])
    file = write(tmp_path, pa.table([texts], schema=pa.schema([column.arrow_field])), [column])
    directory, lengths = directory_of(file), []
    for start in (0, ROW_GROUP_ROWS - PAGE_ROWS):
        pages = directory.covering(0, 0, start, start + 10)
        lengths.append(len(directory.cut([pages], 10)))
        assert file.read_rows(start, start + 10, ["c"])[0].equals(texts.slice(start, 10))
    dictionary = pages.chunk.data_start - pages.chunk.start
    assert lengths[0] > dictionary > 1 << 20 > lengths[1]


def test_checksums_of_pages_are_verified_once(tmp_path, decoded):
    """By all readers that share a memory, however many rows a read decodes; not those beside it."""
    columns, table = wide_table()
    written, names = write(tmp_path, table, columns), ["id", "few"]
    verified = VerifiedParts()

    def reads(read):
        """Read from a file that is opened anew; return whether checksums were verified."""
        decoded.clear()
        read(BaseDataFile(LocalStorage(), written.path, written.ref, verified))
        return [is_verified for _, is_verified in decoded[-1:]]

    def page(number, columns=("id", "few")):
        start = number * PAGE_ROWS + 7
        return reads(lambda file: file.read_rows(start, start + 1, columns))

    assert page(3) == [True]
    assert page(3) == page(3, ["few"]) == [False]
    assert page(4) == page(3, ["id", "text"]) == page(17) == [True]
    assert reads(lambda f: f.read_some(0, names, np.array([5, 4 * PAGE_ROWS]))) == [True]
    assert page(0) == [False]
    assert page(1) == page(2) == [True]
    assert reads(lambda file: file.read([0], names)) == [True]
    assert reads(lambda file: file.read([0], ["few"])) == page(9) == [False]
    assert reads(lambda file: file.read([0, 1], names)) == page(9, ["text"]) == [True]


def test_a_page_that_was_read_in_part_is_not_verified_as_a_whole(tmp_path, decoded):
    """The pages of text end within the rows that a part stands for."""
    columns, table = wide_table()
    file = write(tmp_path, table, columns)
    first_rows = directory_of(file).covering(0, 1, 0, 1).pages.first_rows
    assert first_rows[1] < PAGE_ROWS < first_rows[2]
    for row in (first_rows[1], first_rows[1] - 1, 2 * PAGE_ROWS, first_rows[2] - 1):
        file.read_rows(row, row + 1, ["text"])
    assert [is_verified for _, is_verified in decoded] == [True] * 4


def reader_of(data):
    """Read ranges of bytes."""
    return LocalSource(pa.py_buffer(data), is_map=False).read


def directory_of(file):
    """The page directory of a file, parsed anew."""
    data = file.path.read_bytes()
    start, stop = footer_bounds(data, len(data))
    metadata = pq.read_metadata(pa.BufferReader(data))
    return PageDirectory(data[start:stop], metadata, reader_of(data))


def small_file(folder):
    """A file of three columns with four pages in each row group."""
    columns = [
        Column(name="id", type=types.int64, nullable=False, id=0),
        Column(name="few", type=types.string, nullable=True, id=1),
        Column(name="real", type=types.double, nullable=True, id=2),
    ]
    rows = {"id": range(40), "few": ["a", None, "b", "b"] * 10, "real": np.arange(40) / 8}
    table = pa.table(rows, schema=pa.schema([column.arrow_field for column in columns]))
    return write(folder, table, columns), columns, table


@pytest.mark.parametrize("is_short", [True, False])
def test_a_value_that_has_changed_on_disk_is_damage(tmp_path, is_short):
    """Nothing but the checksum of its page can tell: it is not encoded and not compressed."""
    column = Column(
        id=0, name="c", type=types.int64, nullable=True, encoding="plain", compression="none"
    )
    values = pa.array([0x1122334455667700 + number for number in range(100)])
    with group_rows_of(100):
        file = write(tmp_path, pa.table([values], schema=pa.schema([column.arrow_field])), [column])
        content = file.path.read_bytes()
        for number in (0, 30, 99):
            at = content.index(values[number].as_py().to_bytes(8, "little"))
            changed = bytearray(content)
            changed[at] ^= 0x40
            file.path.write_bytes(changed)
            damaged = BaseDataFile(LocalStorage(), file.path, file.ref)
            with pytest.raises(CorruptionError, match="CRC checksum verification failed"):
                if is_short:
                    damaged.read_rows(number, number + 1, ["c"])
                else:
                    damaged.read([0], ["c"])


def test_files_without_an_offset_index_are_read_by_row_group(tmp_path, monkeypatch):
    """Files of earlier versions have none."""
    writer = pq.ParquetWriter
    monkeypatch.setattr(
        pq,
        "ParquetWriter",
        lambda *a, **options: writer(*a, **options | {"write_page_index": False}),
    )
    with group_rows_of(16):
        file, columns, _ = small_file(tmp_path)
        assert {file.short_unit(column.id) for column in columns} == {16}
        for start, stop in ((0, 3), (17, 18), (33, 40)):
            assert_range(file, columns, start, stop)


def test_a_damaged_index_is_corruption_or_gives_the_rows(tmp_path):
    """No checksum covers the offset indexes: two bits of each byte are flipped, one at a time."""
    with group_rows_of(16):
        file, columns, table = small_file(tmp_path)
        names = [column.name for column in columns]
        directory = directory_of(file)
        chunks = [directory.covering(0, at, 0, 1).chunk for at in range(3)]
        data = file.path.read_bytes()
        refused = 0
        for at in range(chunks[0].index_start, chunks[2].index_stop):
            for bit in (at % 8, (at + 3) % 8):
                damaged = bytearray(data)
                damaged[at] ^= 1 << bit
                file.path.write_bytes(damaged)
                try:
                    values = BaseDataFile(LocalStorage(), file.path, file.ref).read_rows(
                        5, 7, names
                    )
                except CorruptionError as error:
                    refused += 1
                    assert str(file.path) in str(error)
                else:
                    assert pa.table(values, schema=table.schema).equals(table.slice(5, 2))
        assert refused > 50


def test_a_footer_of_any_bytes_is_an_error_or_a_directory(tmp_path):
    """Every byte of a footer is replaced, and footers are cut off."""
    with group_rows_of(16):
        file, _, _ = small_file(tmp_path)
        data = file.path.read_bytes()
        start, stop = footer_bounds(data, len(data))
        footer = data[start:stop]
        read, metadata = reader_of(data), pq.read_metadata(pa.BufferReader(data))
        refused = 0
        for at in range(len(footer)):
            damaged = footer[:at] + bytes([(0, 0x1C, 0x7F, 0xFF)[at % 4]]) + footer[at + 1 :]
            for candidate in (damaged, footer[:at]) if at % 9 == 0 else (damaged,):
                try:
                    directory = PageDirectory(candidate, metadata, read)
                    for group, column in itertools.product(range(3), range(3)):
                        directory.check_bounds(group, column, metadata.schema.column(column))
                        pages = directory.covering(group, column, 5, 7)
                        if pages is not None:
                            assert pages.rows[0][0] <= 5 < 7 <= pages.rows[0][1]
                except (PageIndexError, OSError) as error:  # OSError: an index beyond the end
                    refused += 1
                    assert str(error)
        assert refused > 400


def test_deep_nesting_ends_with_an_error(tmp_path):
    """A hostile footer of structs inside of structs does not end the process."""
    file, _, _ = small_file(tmp_path)
    metadata = pq.read_metadata(file.path)
    with pytest.raises(PageIndexError, match="inside"):
        PageDirectory(b"\x1c" * 100_000, metadata, reader_of(b""))


def test_a_footer_that_only_parquet_can_read_is_damage_to_short_reads(tmp_path):
    """The type of the list of schema elements, sealed: Parquet does not look at it."""
    file, _, _ = small_file(tmp_path)
    content = file.path.read_bytes()
    start, stop = footer_bounds(content, len(content))
    head = b"\x15\x04\x19\x4c"  # 1, version 2; 2, a list of four structs
    footer = content[start:stop]
    assert footer.startswith(head)
    changed = b"".join([content[:start], checked_footer(b"\x15\x04\x19\x48" + footer[4:]), b"PAR1"])
    file.path.write_bytes(changed)
    ref = FileRef(file.path.name, len(changed), zlib.crc32(changed))
    damaged = BaseDataFile(LocalStorage(), file.path, ref)
    assert damaged.row_count == 40
    with pytest.raises(CorruptionError, match="a list of type 8, expected structs"):
        damaged.read_rows(5, 7, ["id"])


def test_a_column_chunk_that_a_footer_describes_twice_is_damage(tmp_path):
    """Parquet would read one of them, and nothing says which."""
    file, _, _ = small_file(tmp_path)
    data = file.path.read_bytes()
    start, stop = footer_bounds(data, len(data))
    metadata = pq.read_metadata(file.path)
    directory = PageDirectory(data[start:stop] * 2, metadata, reader_of(data))
    with pytest.raises(PageIndexError, match="each column chunk once"):
        directory.covering(0, 0, 5, 7)


def test_a_cut_has_more_columns_than_a_short_list_head(tmp_path):
    """Lists of 15 and more elements have their length behind the head."""
    columns = [Column(name=f"c{n}", type=types.int32, nullable=False, id=n) for n in range(40)]
    schema = pa.schema([column.arrow_field for column in columns])
    with group_rows_of(16):
        table = pa.table([pa.array(range(n, n + 20), pa.int32()) for n in range(40)], schema=schema)
        file = write(tmp_path, table, columns)
        assert_range(file, columns, 5, 6)


@pytest.mark.parametrize(
    ("column_type", "value", "stored"),
    [
        (types.int32, 0x01020304, bytes([4, 3, 2, 1])),
        (types.int64, 0x0102030405060708, bytes([8, 7, 6, 5, 4, 3, 2, 1])),
        (types.double, 1.1, struct.pack("<d", 1.1)),
        (types.decimal(38, 2), decimal.Decimal("123456789.01"), (12345678901).to_bytes(16)),
    ],
)
def test_bounds_of_another_length_are_damage(tmp_path, column_type, value, stored):
    """Asked for a bound that is shorter than its type, Parquet ends the process."""
    rows = pa.table({"c": pa.array([value, value], column_type.arrow)})
    file = write(tmp_path, rows, [Column(1, "c", column_type)])
    assert file.statistics(0, "c") == (value, value, 0)
    content = file.path.read_bytes()
    start, stop = footer_bounds(content, len(content))
    at = content.rindex(stored, start, stop)
    for length in (0, len(stored) - 1):
        bound = bytes([length]) + stored[:length]
        footer = content[start : at - 1] + bound + content[at + len(stored) : stop]
        changed = content[:start] + checked_footer(footer) + content[-4:]
        file.path.write_bytes(changed)
        ref = FileRef(file.path.name, len(changed), zlib.crc32(changed))
        with pytest.raises(CorruptionError, match=rf"column c: bounds of \[{length}, "):
            BaseDataFile(LocalStorage(), file.path, ref).statistics(0, "c")
