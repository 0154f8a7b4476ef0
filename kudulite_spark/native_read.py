"""`read_table`: a table at one snapshot, its base data read by Spark's own Parquet reader.

    Table.native_plan ─┬─ files    Parquet scans of Spark                        ─┐
                       ├─ rows     few rows, passed to Spark as Arrow             ├─ union
                       └─ tokens   all other rows, read by the Python source     ─┘

    files of one layout ─┬─ no changes: spark.read.schema(…).parquet(…)
                         ├─ the format of the JVM extension (java/BaseFiles.java), which leaves
                         │  excluded rows out, replaces changed cells, and adds `rows` to the scan
                         └─ without the extension: a filter looks up the bit of each row by its
                            file's size and its position in the file

Spark prunes columns, pushes filters, skips row groups and has sizes for the files as for any
Parquet. A table without deltas is only its files. The call fixes the snapshot and the files, so a
DataFrame can be read until the grace time has passed after a compaction replaced some of them.

A layout maps the columns of the table to those of a file: their name and type there, or absent.
Files of one layout are one scan. After an alteration there are two scans until compactions have
rewritten the older files.

With the JVM extension, a table with changes is one scan for Spark, like one without. The excluded
positions, the changed cells and the rows are an option of the scan (`overlay`), so the plans of two
snapshots are not equal. Excluded are then only rows that changes have set as a whole; in all other
changed rows the scan patches the cells, and a filter on such a column skips no row groups of the
file. The read is planned again without overlays, with all changed rows excluded, if

- the option exceeds 16 MiB compressed, or 1 MiB on Connect, or
- a changed cell is an array, or
- a file lacks the column of a changed cell, or has it with a narrower type.

An option that is too large even then is read as without the extension.

Without the extension, a file is identified by its length, because Spark has that as a constant
number for each file, which costs nothing to look up. Files of one scan are chosen to have different
lengths. The bits of all files are one array of 64-bit numbers, the result of a scalar subquery: the
plan of a query names the subquery, whereas a literal would be part of the plan's text, which Spark
keeps. A filter has no exchange, keeps whole-stage code generation, and costs a fifth of a broadcast
join.

**Invariants**: a row is read as kudulite reads it, bit by bit, or its file is refused
(`is_readable`). In particular (1) float columns are hidden from Parquet's filters: statistics leave
NaN out, and dictionaries distinguish -0.0 from 0.0, so Spark would skip row groups that match; (2)
dates and timestamps are hidden too if a file has some near the ten days of 1582 that Java's old
calendar lacks: Spark takes a literal of these days for one ten days later; (3) dates and timestamps
are never rebased; (4) missing or broken files are errors, whatever the session's settings are.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, DecimalType, LongType, StructField, StructType
from pyspark.sql.utils import is_remote

from kudulite import (
    ColumnType,
    Moment,
    NativeColumn,
    NativeFile,
    NativeLimits,
    NativePlan,
    Schema,
    Table,
    Where,
    parse_where,
)
from kudulite_spark.literals import condition, literal
from kudulite_spark.options import (
    SCAN_TOKENS,
    absolute_path,
    is_address,
    parse_names,
    session_source_options,
    table_in_session,
)
from kudulite_spark.reader import encoded_tokens
from kudulite_spark.session import activate, has_front, start_directory
from kudulite_spark.types import column_names, find_all, spark_schema, spark_type

# The call reads the changes of all columns, before it knows the query. For up to about a twentieth
# of the rows, that is cheaper than to read the whole rowset in Python in each query (measured). If
# Python reads most rowsets, a union with the others only adds tasks. Without the JVM extension, the
# source decodes all columns for each query, and is left as little as is sensible.
LIMITS = NativeLimits(
    changed_fraction_max=0.05,
    handed_bytes_max=12 << 20,
    tokens_fraction_max=0.5,
    bounded_rows_max=4096,
)
# Queries of wider tables need few of the columns. A plan decodes all columns of the rows that it
# hands over. The source reads its rows lazily and, with the JVM extension, only the columns of the
# query.
COLUMNS_MANY = 32

_ENCODINGS = frozenset(
    {
        "PLAIN",
        "PLAIN_DICTIONARY",
        "RLE_DICTIONARY",
        "RLE",
        "BIT_PACKED",
        "DELTA_BINARY_PACKED",
        "DELTA_LENGTH_BYTE_ARRAY",
        "DELTA_BYTE_ARRAY",
    }
)
# Spark's vectorised reader supports it since 4.3.
_ENCODINGS_4_3 = frozenset({"BYTE_STREAM_SPLIT"})
# A column of such a name hides, or is confused with, Spark's columns about a file.
_POSITION = "_tmp_metadata_row_index"
_SPARK_NAMES = frozenset({"_metadata", _POSITION})
# Spark keeps the option in the plan. A client of Connect sends it again with each query.
_OVERLAY_BYTES_MAX = 16 << 20
_OVERLAY_BYTES_SENT_MAX = 1 << 20
# Nothing is expected to become smaller than this fraction of its size.
_PACKED_FACTOR_MAX = 8

# Each overrides the session's setting of the same meaning.
_READ_OPTIONS = {
    "recursiveFileLookup": "true",  # or folder names like a=1 would become columns
    "__globPaths__": "false",  # a path may have * and [ in it
    "mergeSchema": "false",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}

# From the first day that the old calendar lacks to ten days after the last; a day more for zones.
_LACKING = datetime.date(1582, 10, 4), datetime.date(1582, 10, 26)

_LISTING_FILES_MAX = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_setting_lock = threading.Lock()  # for the time in which a setting is another one than the user's

_BLOCK_BITS = 6  # 64 rows to a number
# A start so far below zero that no position in a file leads into the array; an int for Spark.
_NO_BITS = -(1 << 31)
# Files of one scan. The directory of the array grows with the square of their number.
FILES_MAX = 1000
# The types that a wider column may have in its file, except decimals.
_NARROWER = {
    stored.arrow: spark_type(stored)
    for stored in map(ColumnType, ("int8", "int16", "int32", "int64", "float"))
}


def read_table(
    spark: SparkSession,
    path: str | PathLike[str],
    snapshot: Moment | None = None,
    columns: str | Sequence[str] | None = None,
    where: Where | None = None,
) -> DataFrame:
    """Return the rows of the table at `path` as a DataFrame, as of `snapshot` (inclusive) or now.

    `snapshot` is a datetime, ISO text or a HybridTime. `columns` (a sequence, or text as in the
    option) and `where` (text as in the option `filter`, or what `Table.scan` takes) save planning
    work on large tables; Spark also prunes and filters by itself. The rows are the same as those of
    `format("kudulite")`. Use `DataFrame.filter()` for a condition of Spark.

    Raises the errors of `Table.scan`, and OptionError for text that is no filter."""
    activate(spark)
    place = absolute_path(path, start_directory(spark))
    table = table_in_session(spark, place)
    schema = table.schema if snapshot is None else table.schema_at(snapshot)
    conditions = parse_where(() if where is None else where, schema)
    names = column_names(schema)
    if columns is not None:
        given = parse_names("columns", columns) if isinstance(columns, str) else columns
        names = find_all(given, names, f"table {str(table.path)!r}")
    compared = [column for found in conditions for column in found.columns]
    needed = list(dict.fromkeys([*names, *compared]))
    # Spark reads files of a store with a library and credentials of its own.
    is_readable = (lambda file: False) if is_address(place) else FileReader.of(spark).is_readable
    storage = session_source_options(spark, place)
    front = with_overlays = has_front(spark)
    frame = None
    while frame is None:  # once, or again without overlays
        plan = table.native_plan(
            columns=needed,
            where=conditions,
            at=snapshot,
            is_readable=is_readable,
            limits=_limits(len(needed), front),
            with_overlays=with_overlays,
        )
        frame = _frame(spark, table, plan, front, storage)
        with_overlays = False
    for found in plan.conditions:
        frame = frame.filter(condition(found, backquoted))
    return _selected(frame, plan, schema, names)


def _limits(column_count: int, has_front: bool) -> NativeLimits:
    share = min(1.0, COLUMNS_MANY / max(1, column_count)) ** 2
    limits = replace(LIMITS, decoded_bytes_max=int(LIMITS.decoded_bytes_max * share))
    if has_front:
        return limits
    return replace(limits, changed_fraction_max=1.0, tokens_fraction_max=1.0)


def _selected(
    frame: DataFrame, plan: NativePlan, schema: Schema, names: Sequence[str]
) -> DataFrame:
    """Return the columns asked for, with their comments; the frame itself if it has just those.

    They have the types of `schema`, that of the moment: files may have wider ones by now."""
    if not names:
        return frame.select()
    wanted, read = spark_schema(schema, names), spark_schema(plan.schema, names)
    pairs = [(item, item.dataType != read[item.name].dataType) for item in wanted]
    if any(is_wider or item.metadata for item, is_wider in pairs):
        return frame.select(*(_selected_column(item, is_wider) for item, is_wider in pairs))
    if [item.name for item in wanted] == [column.name for column in plan.columns]:
        return frame
    return frame.selectExpr(*(backquoted(item.name) for item in wanted))


def _selected_column(item: StructField, is_wider: bool) -> SparkColumn:
    found = quoted(item.name)
    if is_wider:
        found = found.cast(item.dataType)
    return found.alias(item.name, metadata=item.metadata) if item.metadata or is_wider else found


def _frame(
    spark: SparkSession,
    table: Table,
    plan: NativePlan,
    has_front: bool,
    storage: Mapping[str, str],
) -> DataFrame | None:
    """Return the rows of a plan; None if its changed cells have to be left to another plan."""
    source = spark.read.format("kudulite").options(**storage)
    source = source.option("snapshotTimestamp", str(plan.timestamp))
    columns = [backquoted(column.name) for column in plan.columns]
    if plan.tokens and not plan.files and not plan.conditions:
        # The source can count them without reading them, and is not bound to files.
        return source.load(str(table.path)).selectExpr(*columns)
    scans = _scans(spark, plan, has_front)
    if scans is None:
        return None
    parts, has_rows = scans
    if not plan.columns:
        parts = [part.select() for part in parts]
    if (plan.rows.num_rows and not has_rows) or not (parts or plan.tokens):
        parts.append(_handed_over(spark, plan))
    if plan.tokens:
        source = source.option(SCAN_TOKENS, encoded_tokens(plan.tokens))
        parts.append(source.load(str(table.path)).selectExpr(*columns))
    return reduce(DataFrame.union, parts)


def _handed_over(spark: SparkSession, plan: NativePlan) -> DataFrame:
    names = [column.name for column in plan.columns]
    if not names:
        return spark.range(plan.rows.num_rows).select()
    schema = spark_schema(plan.schema, names)
    # PySpark does not accept arrays without chunks.
    rows = plan.rows if plan.rows.num_rows else plan.rows.schema.empty_table()
    return spark.createDataFrame(rows, schema)


@dataclass(frozen=True)
class FileReader:
    """The properties of a session that decide whether it reads a file exactly."""

    spark_version: tuple[int, int]
    has_metadata: bool  # only version 1 of Spark's file sources has row positions

    @staticmethod
    def of(spark: SparkSession) -> FileReader:
        """Return the properties of a session, classic or Connect."""
        major, minor = (int(part) for part in spark.version.split(".")[:2])
        sources = str(spark.conf.get("spark.sql.sources.useV1SourceList", "parquet") or "")
        names = {name.strip().lower() for name in sources.split(",")}
        return FileReader((major, minor), "parquet" in names)

    def is_readable(self, file: NativeFile) -> bool:
        """Whether Spark reads the file exactly as kudulite does."""
        encodings = _ENCODINGS | (_ENCODINGS_4_3 if self.spark_version >= (4, 3) else frozenset())
        lowered = [name.lower() for name in file.stored_names]
        names = [item.column.name.lower() for item in file.columns]
        return (
            self.has_metadata
            and all(item.encodings <= encodings for item in file.columns)
            and len(set(lowered)) == len(lowered)
            and len(set(names)) == len(names)
            and _SPARK_NAMES.isdisjoint(lowered)
            and all(_stored_type(item) is not None for item in file.columns)
        )


def _scans(
    spark: SparkSession, plan: NativePlan, has_front: bool
) -> tuple[list[DataFrame], bool] | None:
    """Return DataFrames that together are the rows of all files, without the excluded ones.

    Also whether they have the rows that the plan hands over. None if changed cells do not fit."""
    by_layout: dict[tuple[object, ...], list[NativeFile]] = {}
    for file in plan.files:
        by_layout.setdefault(_layout(file), []).append(file)
    frames: list[DataFrame] = []
    has_rows = False
    for group in by_layout.values():
        rows = None if has_rows else _stored(plan, group[0])
        text = overlay(group, rows) if has_front and rows is not None else None
        has_rows |= text is not None
        if text is None and any(file.is_changed for file in group):
            text = overlay(group) if has_front else None
            if text is None and any(file.overlaid for file in group):
                return None
            if text is None:
                frames += _scans_by_array(spark, group)
                continue
        found = _scan(spark, group, text)
        if text is not None:
            found = found.filter(f"{_POSITION} IS NOT NULL")
        frames.append(_with_columns(found, group[0]).drop(_POSITION))
    return frames, has_rows


def _stored(plan: NativePlan, file: NativeFile) -> pa.Table | None:
    """Return the rows beside the files with the columns of a file; None if it has others."""
    names = [item.column.name for item in file.columns]
    are_own = plan.rows.column_names == names and all(map(_is_own, file.columns))
    if not are_own or not plan.rows.num_rows:
        return None
    return plan.rows.rename_columns([str(item.stored_name) for item in file.columns])


def overlay(files: Sequence[NativeFile], rows: pa.Table | None = None) -> str | None:
    """Return the option of java/Overlay.java, which has the grammar.

    None if it is large, for then it would be a burden of every plan, or cannot be expressed."""
    changed = {Path(file.path).name: file for file in files if file.is_changed}
    overlaid_ids = {column.id for file in files for column in file.overlaid}
    stored = [item for item in files[0].columns if item.stored_name is not None]
    overlaid = [
        (number, item)
        for number, item in enumerate(stored)
        if item.column.id in overlaid_ids and _is_own(item) and not item.column.type.is_array
    ]
    names = {Path(file.path).name for file in files}
    is_possible = len(names) == len(files) and len(overlaid) == len(overlaid_ids)
    if not is_possible or any(file.row_count >> 31 for file in files):
        return None
    limit = _OVERLAY_BYTES_SENT_MAX if is_remote() else _OVERLAY_BYTES_MAX
    sink = io.BytesIO()
    sink.write(struct.pack(">I", len(changed)))
    for name, file in changed.items():
        _write_name(sink, name)
        _write_positions(sink, file.excluded)
    sink.write(struct.pack(">I", len(overlaid)))
    for _, item in overlaid:
        _write_name(sink, str(item.stored_name))
        if sink.tell() > _PACKED_FACTOR_MAX * limit:
            return None
        cells = [file.changed_cells(item.column) for file in changed.values()]
        for positions, _ in cells:
            _write_positions(sink, positions)
        values = pa.concat_arrays([values for _, values in cells])
        _write_rows(sink, pa.table({str(item.stored_name): values}))
    _write_name(sink, "" if rows is None else Path(files[0].path).name)
    if rows is not None:
        sink.write(struct.pack(">I", rows.num_rows))
        _write_rows(sink, rows)
    packed = pa.compress(sink.getbuffer(), "zstd", asbytes=True)
    if len(packed) > limit:
        return None
    numbers = ",".join(str(number) for number, _ in overlaid)
    return f"{numbers}:{base64.b64encode(packed).decode()}"


def _write_name(sink: io.BytesIO, name: str) -> None:
    sink.write(struct.pack(">H", len(name.encode())) + name.encode())


def _write_positions(sink: io.BytesIO, positions: np.ndarray) -> None:
    sink.write(struct.pack(">I", len(positions)))
    sink.write(np.diff(positions, prepend=0).astype(">i4").tobytes())


def _write_rows(sink: io.BytesIO, rows: pa.Table) -> None:
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    sink.write(struct.pack(">I", stream.tell()))
    sink.write(stream.getbuffer())


def _scans_by_array(spark: SparkSession, files: Sequence[NativeFile]) -> list[DataFrame]:
    """Return the rows of files of one layout but the excluded ones, without the extension."""
    dirty = [file for file in files if len(file.excluded)]
    clean = [file for file in files if not len(file.excluded)]
    size = sum(file.size_bytes for file in clean)
    parts = parts_of_distinct_sizes(dirty)
    is_small = bool(parts) and size <= sum(file.size_bytes for file in parts[0])
    if is_small and len(parts[0]) + len(clean) <= FILES_MAX:
        # A separate scan would cost more than looking their rows up in vain.
        known = {file.size_bytes for file in parts[0]}
        parts[0] += [file for file in clean if file.size_bytes not in known]
        clean = [file for file in clean if file.size_bytes in known]
    frames = [_scan_without_excluded(spark, part) for part in parts]
    if clean:
        frames.insert(0, _with_columns(_scan(spark, clean), clean[0]))
    return frames


def _layout(file: NativeFile) -> tuple[object, ...]:
    return tuple(
        (c.column.id, c.stored_name, str(c.stored_type), _may_be_lacking(c)) for c in file.columns
    )


def parts_of_distinct_sizes(files: Sequence[NativeFile]) -> list[list[NativeFile]]:
    """Split files into parts without two files of equal length; usually one part."""
    parts: list[list[NativeFile]] = []
    seen: dict[int, int] = {}
    for file in files:
        number = seen.get(file.size_bytes, 0)
        while number < len(parts) and len(parts[number]) == FILES_MAX:
            number += 1
        seen[file.size_bytes] = number + 1
        if number == len(parts):
            parts.append([])
        parts[number].append(file)
    return parts


def _scan(
    spark: SparkSession, files: Sequence[NativeFile], overlay: str | None = None
) -> DataFrame:
    fields = []
    for item in files[0].columns:
        stored = _stored_type(item)
        if item.stored_name is not None and stored is not None:
            fields.append(StructField(item.stored_name, stored))
    paths = [f"file:{file.path}" for file in files]
    reader = spark.read.options(**_READ_OPTIONS)
    with _found_by_driver(spark, len(files)):
        if overlay is None:
            found = reader.format("parquet").schema(StructType(fields)).load(paths)
        else:
            fields.append(StructField(_POSITION, LongType()))
            reader = reader.format("kudulite.OverlaidFiles").schema(StructType(fields))
            found = reader.options(overlay=overlay, files=json.dumps(paths)).load()
    for file in files:
        file.check_exists()  # Spark passes over a missing file whose path has a * or [
    return found


@contextmanager
def _found_by_driver(spark: SparkSession, file_count: int) -> Iterator[None]:
    """Let the driver look up the sizes of so many files.

    Above this setting, Spark starts a job with a task for each file, which takes longer."""
    if is_remote():  # the server looks them up when a query runs
        yield
        return
    with _setting_lock:
        usual = str(spark.conf.get(_LISTING_FILES_MAX))
        spark.conf.set(_LISTING_FILES_MAX, str(max(int(usual), file_count)))
        try:
            yield
        finally:
            spark.conf.set(_LISTING_FILES_MAX, usual)


def _scan_without_excluded(spark: SparkSession, files: Sequence[NativeFile]) -> DataFrame:
    size, row = _unused_names(files[0], "size", "row")
    positions = [f"_metadata.file_size AS `{size}`", f"_metadata.row_index AS `{row}`"]
    found = _with_columns(_scan(spark, files), files[0], positions)
    numbers, directory_size = excluded_bits(files)
    array = pa.ListArray.from_arrays(pa.array([0, len(numbers)], pa.int32()), pa.array(numbers))
    bits = spark.createDataFrame(pa.table({"bits": array})).scalar()
    # get() returns NULL outside of the array: the file has no excluded rows.
    start = sf.get(bits, sf.expr(f"cast(`{size}` % {directory_size} as int)"))
    block = (start + sf.expr(f"shiftright(`{row}`, {_BLOCK_BITS})")).cast("int")
    bit = sf.getbit(sf.get(bits, block), sf.expr(f"cast(`{row}` & 63 as int)"))
    return found.filter(sf.coalesce(bit, sf.lit(0)) == 0).drop(size, row)


def excluded_bits(files: Sequence[NativeFile]) -> tuple[np.ndarray, int]:
    """Return an int64 array with a bit for each row of the files, and a number n.

    The bits of a file begin at array[file size % n]; they are 1 for excluded rows. Only files
    without excluded rows may be of equal size."""
    sizes = np.array(sorted({file.size_bytes for file in files}))
    count = len(sizes)
    while len(np.unique(sizes % count)) < len(sizes):
        count += 1 + count // 16
    starts = np.full(count, _NO_BITS, np.int64)
    parts = [starts]
    length = count
    for file in files:
        if not len(file.excluded):
            continue
        flags = np.zeros(-(-file.row_count // 64) * 64, bool)
        flags[file.excluded] = True
        parts.append(np.packbits(flags, bitorder="little").view("<i8"))
        starts[file.size_bytes % count] = length
        length += len(parts[-1])
    return np.concatenate(parts), count


def _unused_names(file: NativeFile, *wanted: str) -> list[str]:
    taken = {item.column.name.lower() for item in file.columns}
    names = []
    for name in wanted:
        while name in taken:
            name = f"_{name}"
        taken.add(name)
        names.append(name)
    return names


def _with_columns(frame: DataFrame, file: NativeFile, more: Sequence[str] = ()) -> DataFrame:
    """Return the table's columns, made from the columns of the files, and `more` as SQL.

    Columns are SQL text, and left alone if they need no change: each Column object costs calls to
    the JVM, and hundreds of them take longer than a query."""
    texts = [_sql(item) for item in file.columns]
    if not more and texts == [backquoted(item.column.name) for item in file.columns]:
        return frame
    if None not in texts:
        return frame.selectExpr(*(text for text in texts if text is not None), *more)
    columns = [
        literal(item.default, item.column.type).alias(item.column.name)
        if text is None
        else sf.expr(text)
        for item, text in zip(file.columns, texts, strict=True)
    ]
    return frame.select(*columns, *(sf.expr(text) for text in more))


def _sql(item: NativeColumn) -> str | None:
    """Return SQL that makes the column from the file's; None if the file does not have it."""
    if item.stored_name is None:
        return None
    wanted, found = spark_type(item.column.type), backquoted(item.stored_name)
    if _stored_type(item) != wanted:
        found = f"CAST({found} AS {wanted.simpleString()})"
    # Spark pushes no filter through these functions, and they return the value unchanged.
    name = item.column.type.name
    if name in ("float", "double"):
        found = f"nanvl({found}, {found})"
    elif name == "date" and _may_be_lacking(item):
        found = f"date_from_unix_date(unix_date({found}))"
    elif name == "unixtime_micros" and _may_be_lacking(item):
        found = f"timestamp_micros(unix_micros({found}))"
    own = backquoted(item.column.name)
    return own if found == own else f"{found} AS {own}"


def _may_be_lacking(item: NativeColumn) -> bool:
    """Whether a filter on days that the old calendar lacks could skip rows of the file."""
    if item.bounds is None:
        return True
    least, greatest = (
        value.date() if isinstance(value, datetime.datetime) else value for value in item.bounds
    )
    return least <= _LACKING[1] and greatest >= _LACKING[0]


def _is_own(item: NativeColumn) -> bool:
    """Whether a file has the column, in its current type."""
    return item.stored_name is not None and _stored_type(item) == spark_type(item.column.type)


def _stored_type(item: NativeColumn) -> DataType | None:
    """Return the Spark type of a column in its file; None if no type is exact."""
    own = item.column.type
    if item.stored_type is None or item.stored_type == own.arrow:
        return spark_type(own)
    if pa.types.is_decimal(item.stored_type):
        return DecimalType(item.stored_type.precision, item.stored_type.scale)
    return _NARROWER.get(item.stored_type)


def quoted(name: str) -> SparkColumn:
    """Return the column of exactly this name, dots and all."""
    return sf.col(backquoted(name))


def backquoted(name: str) -> str:
    """Return the name of a column as SQL."""
    return "`" + name.replace("`", "``") + "`"
