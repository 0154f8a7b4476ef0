"""Base data: what is written comes back, other readers can read it, and damage is found."""

import dataclasses
import datetime
import decimal
import math
import random
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from kudulite.basefile import base_data
from kudulite.basefile import footer as footer_format
from kudulite.basefile.base_data import ROW_GROUP_ROWS, BaseDataFile, BaseDataWriter, group_rows_of
from kudulite.basefile.column_storage import parquet_encoding
from kudulite.basefile.footer import footer_bounds, footer_stamps, sealed_footer
from kudulite.errors import CorruptionError, FormatVersionError, StorageError
from kudulite.model import types
from kudulite.model.schema import COMPRESSIONS, Column, encodings_of
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import FileRef

ALL_TYPES = [
    types.bool_,
    types.int8,
    types.int16,
    types.int32,
    types.int64,
    types.float_,
    types.double,
    types.decimal(9, 2),
    types.decimal(18, 4),
    types.decimal(38, 10),
    types.date,
    types.unixtime_micros,
    types.timestamp_ntz,
    types.string,
    types.varchar(20),
    types.binary,
]
NULL_PATTERNS = ("none", "some", "all", "runs")


def values_of(column_type, row_count, seed, *, distinct=None):
    """An array of a type with its extreme values first; `distinct` bounds how many differ."""
    rng = np.random.default_rng(seed)
    arrow = column_type.arrow
    picks = rng.integers(0, distinct or (1 << 53), row_count)
    if pa.types.is_boolean(arrow):
        return pa.array(picks % 2 == 0)
    if pa.types.is_floating(arrow):
        values = picks.astype(arrow.to_pandas_dtype())
        values[:5] = [np.nan, -0.0, np.inf, -np.inf, np.finfo(values.dtype).tiny][:row_count]
        return pa.array(values, arrow)
    if pa.types.is_decimal(arrow):
        limit = 10**arrow.precision
        unscaled = [-(limit - 1), limit - 1, 0, *(int(p) * 7919 % limit for p in picks)]
        with decimal.localcontext(prec=50):
            scaled = [decimal.Decimal(v).scaleb(-arrow.scale) for v in unscaled[:row_count]]
        return pa.array(scaled, arrow)
    if arrow in (pa.string(), pa.binary()):
        texts = ["", "\0", "a\0", "😀é", *(f"v{p}" for p in picks)][:row_count]
        return pa.array([t.encode() if arrow == pa.binary() else t for t in texts], arrow)
    width = arrow.bit_width
    limit = 2_900_000 if pa.types.is_date(arrow) else 1 << (width - 2)
    numbers = (picks % limit).astype(f"int{width}")
    if pa.types.is_integer(arrow):
        numbers[:2] = [-(1 << (width - 1)), (1 << (width - 1)) - 1][:row_count]
    return pa.array(numbers).view(arrow)


def with_nulls(array, pattern, seed):
    """The array with some of its values made null."""
    row = np.arange(len(array))
    masks = {
        "none": row < 0,
        "some": np.random.default_rng(seed).random(len(array)) < 0.3,
        "all": row >= 0,
        "runs": (row // 500) % 2 == 0,
    }
    return pc.if_else(pa.array(~masks[pattern]), array, pa.scalar(None, array.type))


def write_base_data(sink, rows, columns):
    """Write all rows at once."""
    with BaseDataWriter(sink, columns) as writer:
        writer.write(rows)
        return writer.close()


def write(folder, table, columns, name="base.parquet"):
    """Write a base data file and return it, opened."""
    path = folder / name
    with LocalStorage().open_sink(path) as sink:
        row_count = write_base_data(sink, table, columns)
        ref = sink.finish()
    assert row_count == table.num_rows
    assert ref.length == path.stat().st_size
    return BaseDataFile(LocalStorage(), path, ref)


def bits(array):
    """A form in which equal means bit for bit: NaN equals itself, -0.0 is not 0.0."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_floating(array.type):
        zero = pc.fill_null(array, 0.0).to_numpy(zero_copy_only=False)
        return zero.tobytes(), array.is_null().to_pylist()
    return array


def read_all(file):
    return file.read(range(file.row_group_count), file.schema.names)


def encodings_in(file, name):
    chunk = pq.read_metadata(file.path).row_group(0).column(file.schema.names.index(name))
    return set(chunk.encodings)


@pytest.mark.parametrize("column_type", ALL_TYPES, ids=str)
def test_every_type_encoding_and_null_pattern_comes_back_bit_for_bit(tmp_path, column_type):
    """One file per encoding; columns for the null patterns, of many and of few distinct values."""
    for encoding in encodings_of(column_type):
        columns, arrays = [], []
        for pattern in NULL_PATTERNS:
            for distinct in (None, 5):
                array = values_of(column_type, 3000, len(columns), distinct=distinct)
                arrays.append(with_nulls(array, pattern, len(columns)))
                name = f"{pattern}_{distinct}"
                columns.append(Column(len(columns), name, column_type, encoding=encoding))
                assert arrays[-1].type == column_type.arrow
        columns[0] = dataclasses.replace(columns[0], nullable=False)
        table = pa.table(arrays, names=[column.name for column in columns])
        file = write(tmp_path, table, columns, f"{encoding}.parquet")
        result = read_all(file)
        assert result.schema.types == [column_type.arrow] * len(columns)
        assert [field.nullable for field in result.schema] == [c.nullable for c in columns]
        assert all(field.metadata is None for field in result.schema)
        for name in table.column_names:
            assert bits(result[name]) == bits(table[name]), (encoding, name)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_comes_back_and_is_the_one_asked_for(tmp_path, compression):
    """The default is zstd."""
    columns = [
        Column(i, f"c{i}", column_type, compression=compression)
        for i, column_type in enumerate(ALL_TYPES)
    ]
    arrays = [values_of(column.type, 1000, column.id) for column in columns]
    table = pa.table(arrays, names=[column.name for column in columns])
    file = write(tmp_path, table, columns)
    for name, array in zip(table.column_names, arrays, strict=True):
        assert bits(read_all(file)[name]) == bits(array)
    found = pq.read_metadata(file.path).row_group(0).column(4).compression
    names = {"default": "ZSTD", "none": "UNCOMPRESSED", "lz4": "LZ4"}
    assert found == names.get(compression, compression.upper())


@pytest.mark.parametrize(
    ("column_type", "encoding", "expected"),
    [
        (types.int64, "auto", "DELTA_BINARY_PACKED"),
        (types.unixtime_micros, "bitshuffle", "DELTA_BINARY_PACKED"),
        (types.decimal(18, 2), "auto", "DELTA_BINARY_PACKED"),
        (types.int32, "plain", "PLAIN"),
        (types.int8, "rle", "RLE_DICTIONARY"),
        (types.bool_, "auto", "RLE"),
        (types.bool_, "rle", "RLE"),
        (types.bool_, "plain", "PLAIN"),
        (types.double, "auto", "PLAIN"),
        (types.float_, "bitshuffle", "BYTE_STREAM_SPLIT"),
        (types.decimal(38, 2), "bitshuffle", "BYTE_STREAM_SPLIT"),
        (types.string, "auto", "PLAIN"),
        (types.string, "dict", "RLE_DICTIONARY"),
        (types.binary, "prefix", "DELTA_BYTE_ARRAY"),
    ],
    ids=str,
)
def test_kudus_encodings_become_parquets(tmp_path, column_type, encoding, expected):
    column = Column(1, "c", column_type, encoding=encoding)
    file = write(tmp_path, pa.table({"c": values_of(column_type, 9000, 1)}), [column])
    assert expected in encodings_in(file, "c")
    if expected != "RLE_DICTIONARY":
        assert "RLE_DICTIONARY" not in encodings_in(file, "c")


@pytest.mark.parametrize("column_type", [types.double, types.string, types.decimal(38, 2)], ids=str)
def test_auto_takes_a_dictionary_where_values_repeat(tmp_path, column_type):
    """Seen in a sample; an all-null or empty column is no obstacle."""
    column = Column(1, "c", column_type)
    repeating = values_of(column_type, 9000, 1, distinct=50)
    assert "RLE_DICTIONARY" in encodings_in(
        write(tmp_path, pa.table({"c": repeating}), [column]), "c"
    )
    for i, array in enumerate([with_nulls(repeating, "all", 1), repeating.slice(0, 0)]):
        file = write(tmp_path, pa.table({"c": array}), [column], f"{i}.parquet")
        assert bits(read_all(file)["c"]) == bits(array)
    assert parquet_encoding(types.int64, "auto", has_repeats=True) == "DELTA_BINARY_PACKED"


def three_column_table(row_count):
    ids = np.arange(row_count)
    not_null = pa.field("id", pa.int64(), nullable=False)
    schema = pa.schema([not_null, ("v", pa.float64()), ("s", pa.string())])
    table = pa.table([ids, ids * 0.5, pa.array(ids % 1000).cast(pa.string())], schema=schema)
    return table, [
        Column(10, "id", types.int64, nullable=False),
        Column(7, "v", types.double),
        Column(300, "s", types.string),
    ]


def test_row_groups_hold_exactly_the_rows_that_their_number_says(tmp_path):
    """rowid // ROW_GROUP_ROWS is the row group, also when the table came in odd chunks."""
    table, columns = three_column_table(2 * ROW_GROUP_ROWS + 5)
    odd = pa.concat_tables([table.slice(0, 100_001), table.slice(100_001)])
    file = write(tmp_path, odd, columns)
    assert (file.row_count, file.row_group_count) == (2 * ROW_GROUP_ROWS + 5, 3)
    assert file.row_group_rows(1) == (ROW_GROUP_ROWS, 2 * ROW_GROUP_ROWS)
    assert file.row_group_rows(2) == (2 * ROW_GROUP_ROWS, 2 * ROW_GROUP_ROWS + 5)
    for row_group in range(3):
        start, stop = file.row_group_rows(row_group)
        assert file.read([row_group], ["id"])["id"].to_numpy().tolist() == list(range(start, stop))
    assert read_all(file).equals(table)


def test_a_file_written_by_row_groups_is_that_of_one_write(tmp_path):
    """Byte for byte, where the first rows are like all others."""
    table, columns = three_column_table(2 * ROW_GROUP_ROWS + 5)
    whole = write(tmp_path, table, columns)
    path = tmp_path / "parts" / whole.path.name
    path.parent.mkdir()
    with LocalStorage().open_sink(path) as sink, BaseDataWriter(sink, columns) as writer:
        for start in range(0, table.num_rows, ROW_GROUP_ROWS):
            writer.write(table.slice(start, ROW_GROUP_ROWS))
        assert writer.close() == table.num_rows
        sink.finish()
    assert path.read_bytes() == whole.path.read_bytes()


def test_a_writer_that_is_left_half_way_writes_no_more(tmp_path):
    """Its sink removes the file; pyarrow's buffers do not come after that."""
    table, columns = three_column_table(ROW_GROUP_ROWS)
    path = tmp_path / "half.parquet"
    with (
        pytest.raises(KeyError, match="stop"),
        LocalStorage().open_sink(path) as sink,
        BaseDataWriter(sink, columns) as writer,
    ):
        writer.write(table)
        raise KeyError("stop")
    assert list(tmp_path.iterdir()) == []


def test_a_read_gives_rows_and_columns_in_the_order_asked_for(tmp_path):
    table, columns = three_column_table(ROW_GROUP_ROWS + 3)
    file = write(tmp_path, table, columns)
    result = file.read([1, 0], ["s", "id"])
    assert result.column_names == ["s", "id"]
    assert result["id"][:4].to_pylist() == [*range(ROW_GROUP_ROWS, ROW_GROUP_ROWS + 3), 0]
    assert file.read([1], []).num_columns == 0
    assert file.read([], ["v"]).schema == pa.schema([("v", pa.float64())])
    with pytest.raises(KeyError, match="nope"):
        file.read([0], ["nope"])
    with pytest.raises(IndexError, match="no row group 2"):
        file.read([2], ["id"])


def test_names_with_dots_are_one_column_each(tmp_path):
    """Parquet readers take "a.b" for a part of "a"."""
    columns = [Column(i, name, types.int64) for i, name in enumerate(["a", "a.b", "Ärger ✓", " "])]
    table = pa.table([pa.array([i, i]) for i in range(4)], names=[c.name for c in columns])
    file = write(tmp_path, table, columns)
    for column in columns:
        assert file.read([0], [column.name])[column.name].to_pylist() == [column.id] * 2


def test_any_parquet_reader_opens_the_file(tmp_path):
    """Names, values, and field ids, which are the column ids."""
    columns = [Column(40 - i, f"c{i}", column_type) for i, column_type in enumerate(ALL_TYPES)]
    arrays = [with_nulls(values_of(c.type, 500, c.id), "some", c.id) for c in columns]
    table = pa.table(arrays, names=[column.name for column in columns])
    file = write(tmp_path, table, columns)
    plain = pq.read_table(file.path)
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in plain.schema]
    assert ids == [column.id for column in columns]
    assert file.name_by_id == {column.id: column.name for column in columns}
    assert b"pandas" not in (pq.read_metadata(file.path).metadata or {})
    duck = duckdb.sql(f"select * from '{file.path}'").to_arrow_table()
    for column in columns:
        assert bits(plain[column.name]) == bits(table[column.name])
        assert bits(duck[column.name].cast(column.type.arrow)) == bits(table[column.name])


@pytest.mark.parametrize("column_type", ALL_TYPES, ids=str)
def test_statistics_are_the_columns_minimum_maximum_and_null_count(tmp_path, column_type):
    """Per row group; NaN is left out; all-null has no minimum."""
    array = with_nulls(values_of(column_type, 2000, 3), "some", 3)
    arrays = [array, with_nulls(array, "all", 3)]
    columns = [Column(1, "c", column_type), Column(2, "empty", column_type)]
    file = write(tmp_path, pa.table(arrays, names=["c", "empty"]), columns)
    minimum, maximum, null_count = file.statistics(0, "c")
    values = [v for v in array.to_pylist() if v is not None and v == v]
    if column_type.name == "string" or column_type.name == "varchar":
        values.sort(key=str.encode)
        assert (minimum, maximum) == (values[0], values[-1])
    else:
        assert (minimum, maximum) == (min(values), max(values))
        assert type(minimum) is type(values[0])
    assert null_count == array.null_count
    assert file.statistics(0, "empty") == (None, None, 2000)


def test_a_timestamp_that_datetime_cannot_say_has_no_minimum(tmp_path):
    """The column is readable; its statistics say nothing."""
    array = pa.array([0, (1 << 63) - 1]).view(pa.timestamp("us", "UTC"))
    file = write(tmp_path, pa.table({"t": array}), [Column(1, "t", types.unixtime_micros)])
    assert file.statistics(0, "t") == (None, None, 0)
    assert read_all(file)["t"].combine_chunks().equals(array)
    dates = pa.table({"t": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)])})
    file = write(tmp_path, dates, [Column(1, "t", types.date)], "dates.parquet")
    assert file.statistics(0, "t")[:2] == (datetime.date(1, 1, 1), datetime.date(9999, 12, 31))


def test_a_null_in_a_not_null_column_is_refused_and_leaves_no_file(tmp_path):
    column = Column(1, "c", types.int64, nullable=False)
    with pytest.raises(pa.ArrowInvalid, match="null"):
        write(tmp_path, pa.table({"c": pa.array([1, None])}), [column])
    assert list(tmp_path.iterdir()) == []


def test_a_disk_error_while_writing_keeps_its_kind(tmp_path):
    """A StorageError of the sink comes out as that, through pyarrow."""

    class FullSink:
        path = tmp_path / "base.parquet"

        def write(self, data):
            raise StorageError(28, "cannot write: no space")

        def tell(self):
            return 0

    table, columns = three_column_table(1000)
    with pytest.raises(StorageError, match="no space"):
        write_base_data(FullSink(), table, columns)


def test_a_missing_file_is_a_storage_error(tmp_path):
    file = BaseDataFile(LocalStorage(), tmp_path / "gone.parquet", FileRef("gone.parquet", 100, 0))
    with pytest.raises(StorageError, match=r"gone\.parquet: it does not exist"):
        file.row_count  # noqa: B018


@pytest.mark.parametrize("length", [0, 3, 8, 500])
def test_a_truncated_or_garbage_file_is_corruption(tmp_path, length):
    """Whether or not the metadata knows of the length; the message names the path."""
    table, columns = three_column_table(1000)
    file = write(tmp_path, table, columns)
    whole = file.path.read_bytes()
    for content in (
        whole[:length],
        whole[length:length],
        b"\xa5" * length,
        whole[-max(length, 1) :],
    ):
        file.path.write_bytes(content)
        for ref in (file.ref, FileRef(file.ref.name, len(content), 0)):
            with pytest.raises(CorruptionError, match=r"base\.parquet"):
                read_all(BaseDataFile(LocalStorage(), file.path, ref))


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_is_corruption_or_harmless_but_never_other_data(tmp_path, seed):
    """Pages and footer have checksums; what a page header's damage does, Parquet notices."""
    table, columns = three_column_table(3000)
    columns[1] = dataclasses.replace(columns[1], encoding="bitshuffle")
    file = write(tmp_path, table, columns)
    whole = file.path.read_bytes()
    rng, found = random.Random(seed), 0
    for _ in range(150):
        damaged = bytearray(whole)
        bit = rng.randrange(len(whole) * 8)
        damaged[bit // 8] ^= 1 << bit % 8
        file.path.write_bytes(damaged)
        try:
            result = read_all(BaseDataFile(LocalStorage(), file.path, file.ref))
            assert result.equals(table), f"{seed=} {bit=} of {len(whole)} bytes"
        except CorruptionError as error:
            assert "base.parquet" in str(error)
            found += 1
    assert found > 120


def test_every_flipped_bit_of_the_footer_is_corruption(tmp_path):
    """Also in the checksum's own digits."""
    table, columns = three_column_table(100)
    file = write(tmp_path, table, columns)
    whole = file.path.read_bytes()
    start, stop = footer_bounds(whole, len(whole))
    for position in range(start, stop):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        file.path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match="footer"):
            BaseDataFile(LocalStorage(), file.path, file.ref).row_count  # noqa: B018


def test_wide_rows_have_smaller_row_groups(tmp_path):
    """A half of the rows, a quarter and so on; older software refuses the format version 2."""
    table, columns = three_column_table(100)
    path = tmp_path / "base.parquet"
    with LocalStorage().open_sink(path) as sink, BaseDataWriter(sink, columns, 32) as writer:
        writer.write(table.slice(0, 64))
        writer.write(table.slice(64))
        writer.close()
        ref = sink.finish()
    file = BaseDataFile(LocalStorage(), path, ref)
    assert pq.read_metadata(path).metadata[b"kudulite.format_version"] == b"2"
    assert (file.group_rows, file.row_group_count) == (32, 4)
    assert [file.row_group_rows(n) for n in (0, 3)] == [(0, 32), (96, 100)]
    assert read_all(file).equals(table)
    (ids,) = file.read_rows(70, 75, ["id"])
    assert ids.equals(table["id"].combine_chunks().slice(70, 5))


@pytest.mark.parametrize("group_rows", [24, 131072 // 3])
def test_row_groups_of_other_sizes_are_damage(tmp_path, group_rows):
    """The rows of a row group are 131,072 divided by a whole number of twos."""
    table, columns = three_column_table(2 * group_rows)
    path = tmp_path / "base.parquet"
    with (
        LocalStorage().open_sink(path) as sink,
        BaseDataWriter(sink, columns, group_rows) as writer,
    ):
        writer.write(table)
        writer.close()
        ref = sink.finish()
    with pytest.raises(CorruptionError, match="row groups of"):
        read_all(BaseDataFile(LocalStorage(), path, ref))


def test_rows_of_a_row_group_by_their_bytes():
    """As many as fit in the bytes of a row group, never more than ROW_GROUP_ROWS."""
    assert [group_rows_of(size) for size in (0, 100, 256, 257, 16384)] == [
        ROW_GROUP_ROWS,
        ROW_GROUP_ROWS,
        ROW_GROUP_ROWS,
        ROW_GROUP_ROWS // 2,
        ROW_GROUP_ROWS // 64,
    ]
    assert group_rows_of(1 << 40) == 1


def test_a_newer_format_version_is_refused(tmp_path):
    """A well-formed file, its checksum right, of version 3."""
    table, columns = three_column_table(100)
    file = write(tmp_path, table, columns)
    whole = file.path.read_bytes()
    key = b"kudulite.format_version\x18\x01"
    newer = bytearray(whole.replace(key + b"1", key + b"3"))
    position = newer.rfind(b"kudulite.footer_crc32") + 23
    newer[position : position + 8] = b"00000000"
    start, _ = footer_bounds(newer, len(newer))
    file.path.write_bytes(newer[:start] + sealed_footer(bytes(newer[start - 1 :]))[1:])
    with pytest.raises(FormatVersionError, match=r"base\.parquet.*version 3.*upgrade"):
        BaseDataFile(LocalStorage(), file.path, file.ref).row_count  # noqa: B018


def test_a_parquet_file_of_somebody_else_is_refused(tmp_path):
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(CorruptionError, match=r"other\.parquet"):
        file = BaseDataFile(LocalStorage(), path, FileRef(path.name, path.stat().st_size, 0))
        assert file.row_count


def test_threads_share_one_file_also_after_its_name_is_gone(tmp_path):
    """Each thread reads every row group many times; a collection may remove the file meanwhile."""
    table, columns = three_column_table(3 * ROW_GROUP_ROWS)
    file = write(tmp_path, table, columns)
    wrong = []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(12):
            group = rng.randrange(3)
            start, _ = file.row_group_rows(group)
            if not file.read([group], ["id", "s"]).equals(
                table.select(["id", "s"]).slice(start, ROW_GROUP_ROWS)
            ):
                wrong.append(group)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.path.unlink()
    assert read_all(file).num_rows == table.num_rows
    assert wrong == []


def test_statistics_of_another_type_are_damage():
    """A bit of the type of a column chunk, sealed: Parquet alone would end the process."""
    path = Path(__file__).parent / "golden" / "wrong-type-of-statistics.parquet"
    file = BaseDataFile(LocalStorage(), path, FileRef(path.name, path.stat().st_size, 0))
    assert file.statistics(0, "k") == (1000, 1596, 0)
    with pytest.raises(CorruptionError, match="cannot read the statistics of column d"):
        file.statistics(0, "d")


def test_columns_of_equal_names_are_damage(tmp_path):
    """A bit of the name of a column, sealed."""
    schema = pa.schema([("p", pa.int64()), ("q", pa.int64())])
    columns = [Column(number, name, types.int64) for number, name in enumerate("pq")]
    path = write(tmp_path, pa.table({"p": [1], "q": [2]}, schema), columns).path
    content = path.read_bytes()
    start, stop = footer_bounds(content, len(content))
    footer = content[start:stop].replace(b"\x01q", b"\x01p")
    at = footer.rfind(footer_format.FOOTER_CRC_KEY) + len(footer_format.FOOTER_CRC_KEY) + 2
    blank = footer[:at] + footer_format.FOOTER_CRC_BLANK + footer[at + 8 :]
    path.write_bytes(content[:start] + sealed_footer(blank + content[stop:]))
    with pytest.raises(CorruptionError, match=r"columns of equal names in \['p', 'p'\]"):
        assert BaseDataFile(LocalStorage(), path, FileRef(path.name, len(content), 0)).schema


def test_size_statistics_of_another_length_are_damage(tmp_path):
    """A footer with other bytes, sealed: in a process of its own, which ends."""
    golden = Path(__file__).parent / "golden" / "wrong-size-statistics.parquet"
    path = tmp_path / pq.read_metadata(golden).metadata[b"kudulite.file_name"].decode()
    path.write_bytes(golden.read_bytes())
    script = """if True:
        import pathlib, sys
        from kudulite.basefile.base_data import BaseDataFile
        from kudulite.errors import CorruptionError
        from kudulite.storage.local_storage import LocalStorage
        from kudulite.storage.storage import FileRef
        path = pathlib.Path(sys.argv[1])
        file = BaseDataFile(LocalStorage(), path, FileRef(path.name, path.stat().st_size, 0))
        try:
            print([file.statistics(0, name) for name in file.name_by_id.values()])
        except CorruptionError:
            print("refused")
        """
    command = [sys.executable, "-c", script, str(path)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout == "refused\n", found.stderr


@pytest.mark.parametrize("name", [None, "base-1.parquet", "base-2.parquet"])
def test_base_data_names_its_file(tmp_path, name):
    """A file in the place of another is found; None: older software did not write the name."""
    table, columns = three_column_table(100)
    file = write(tmp_path, table, columns, "base-1.parquet")
    assert pq.read_metadata(file.path).metadata[b"kudulite.file_name"] == b"base-1.parquet"
    if name is None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(base_data, "footer_stamps", without_name)
            file = write(tmp_path, table, columns, "base-3.parquet")
    else:
        file = BaseDataFile(
            LocalStorage(),
            file.path.rename(tmp_path / name),
            dataclasses.replace(file.ref, name=name),
        )
    if name == "base-2.parquet":
        with pytest.raises(CorruptionError, match=r"base-2.parquet: holds the file base-1.parquet"):
            read_all(file)
    else:
        assert read_all(file).equals(table)


def without_name(path, **options):
    stamps = dict(footer_stamps(path, **options))
    del stamps[footer_format.FILE_NAME_KEY]
    return stamps


@pytest.mark.parametrize(
    "texts", [[b"\xff"], [b"\xc3", b"\xa9"], [b"a", b"\xe2\x82"], [b"", b"\x80"]]
)
def test_text_that_is_not_utf8_is_damage(tmp_path, texts):
    """Parquet does not look at it; two texts that are UTF-8 only together are not, either."""
    path = tmp_path / "base.parquet"
    column = Column(0, "s", types.string, nullable=False)
    bad = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts).buffers())
    with LocalStorage().open_sink(path) as sink, BaseDataWriter(sink, [column]) as writer:
        writer.write(pa.table({"s": bad}))
        writer.close()
        ref = sink.finish()
    with pytest.raises(CorruptionError, match=r"base\.parquet: cannot read"):
        read_all(BaseDataFile(LocalStorage(), path, ref))


@pytest.mark.parametrize("kind", ["float", "double", "array(double)", "array(float)"])
@pytest.mark.parametrize("at", [None, 0, 40, 99])
def test_base_data_says_which_columns_have_nan(tmp_path, kind, at):
    """In any row group, also in arrays; NULL and infinity are none."""
    numbers = [None, math.inf, -math.inf, 0.0] * 25
    if at is not None:
        numbers[at] = math.nan
    column_type = types.parse_type(kind)
    cells = [[1.0, number] for number in numbers] if column_type.is_array else numbers
    columns = [
        Column(5, "k", types.int32, nullable=False),
        Column(7, "x", column_type),
        Column(9, "plain", types.double),
        Column(11, "empty", types.parse_type("array(double)")),
    ]
    arrays = [range(100), cells, [1.5] * 100, [None, []] * 50]
    rows = pa.table(
        [pa.array(a, c.type.arrow) for a, c in zip(arrays, columns, strict=True)],
        schema=pa.schema(column.arrow_field for column in columns),
    )
    path = tmp_path / "base.parquet"
    with LocalStorage().open_sink(path) as sink, BaseDataWriter(sink, columns, 32) as writer:
        for start in range(0, 100, 32):
            writer.write(rows.slice(start, 32))
        writer.close()
        ref = sink.finish()
    expected = b"" if at is None else b"7"
    assert pq.read_metadata(path).metadata[b"kudulite.nan_columns"] == expected
    file = BaseDataFile(LocalStorage(), path, ref)
    assert [name for name in rows.column_names if file.may_have_nan(name)] == ["x"][: len(expected)]


def test_only_files_with_floats_say_which_columns_have_nan(tmp_path):
    """A name that is not the id of a column is damage."""
    column = Column(3, "k", types.int32, nullable=False)
    rows = pa.table({"k": pa.array([1], pa.int32())})
    file = write(tmp_path, rows, [column])
    assert footer_format.NAN_COLUMNS_KEY not in pq.read_metadata(file.path).metadata
    assert not file.may_have_nan("k")
    for number, stored in enumerate(("4", "x", "3,,-", b"\xff")):
        with pytest.MonkeyPatch.context() as patch:
            stamps = {footer_format.NAN_COLUMNS_KEY: stored}
            patch.setattr(
                base_data, "footer_stamps", lambda *a, s=stamps, **o: s | footer_stamps(*a, **o)
            )
            file = write(tmp_path, rows, [column], f"{number}.parquet")
        with pytest.raises(CorruptionError, match="cannot read the footer"):
            file.may_have_nan("k")
