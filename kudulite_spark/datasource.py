"""`format("kudulite")`: the class that Spark asks for schemas, readers and writers.

Spark's Python processes, in order. Each imports this module anew and gets the pickled instance:

    create_data_source        __init__, schema()            once per load() or view (see below)
    plan_data_source_read     reader(), partitions()        at the first action
    write_into_data_source    __init__, writer()            once per write, or batch of a stream
    python_streaming_…        streamReader(), streamWriter()
                              the one reader of a query; to commit or abort a batch of a stream

**A DataFrame is one snapshot, fixed at load()**, or one window of changes. The moments are chosen
in the first of these processes and are part of the pickled instance. If the user gives a schema,
Spark starts that process at the first action, which then fixes the snapshot. Depending on a
setting, Spark keeps the first plan of a DataFrame for all its actions or plans anew for each
filter. With fixed moments the answer is the same. Spark Connect makes the DataFrame anew for each
action, so there the user fixes the moment. With `snapshotTimestamp=query` the JVM
extension makes an instance for each scan. An instance also keeps the table's schema of the moment,
or of now for a stream. Names mean columns of this schema, which are found by id.

**No pushFilters by default.** Spark 4.0 asks for no filters. Spark 4.1 to 4.3 keeps the reader that
took one query's filters and uses it for the next query of the same DataFrame: wrong answers,
without an error. The option `pushdown` is only for DataFrames that are used once. Filters that are
always safe belong in the option `filter`. With the setting
`spark.sql.python.filterPushdown.enabled` off, Spark refuses a reader that defines pushFilters.
Therefore only the process that asks for filters gets such a reader. The JVM extension (`session`)
makes a plan for every scan and asks for filters itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

import kudulite
from kudulite.errors import (
    KuduliteError,
    NotSupportedError,
    OptionError,
    SchemaError,
    TableNotFoundError,
    TimestampError,
    UsageError,
)
from kudulite_spark.options import (
    CATALOG,
    CHECKPOINT,
    COUNT,
    FRONT,
    Place,
    ReadOptions,
    WriteOptions,
    absolute_path,
)
from kudulite_spark.python_worker import end_work
from kudulite_spark.reader import PushingTabletReader, ScanPlan, TabletReader, decoded_tokens
from kudulite_spark.spark_versions import HAS_ROWS_WITHOUT_COLUMNS
from kudulite_spark.sql.catalog import (
    answered,
    load_failed,
    with_metadata_note,
    with_table_note,
)
from kudulite_spark.sql.metadata_tables import (
    CHANGES,
    MetadataReader,
    metadata_name,
    metadata_schema,
)
from kudulite_spark.stream_bounds import StreamStart
from kudulite_spark.stream_reader import TableStreamReader
from kudulite_spark.types import (
    CHANGE_COLUMNS,
    arrow_schema,
    change_schema,
    find_all,
    find_column,
    is_exactly_readable,
    spark_schema,
    table_columns,
    with_row_count,
)
from kudulite_spark.write_plan import plan_write
from kudulite_spark.writer import StreamTableWriter, TableWriter

if TYPE_CHECKING:
    from kudulite import Condition, Schema, Table

# As HybridTimes: when the rows are read, or when the changes end; after when changes begin.
Moments = tuple[int, int | None]

# The value of the JVM extension's option in a load() of the catalog.
CATALOG_LOAD = "catalog"
_REPLACEMENTS_MAX = 3
_LOAD_PROCESS = "pyspark.sql.worker.create_data_source"
_WRITE_PROCESS = "pyspark.sql.worker.write_into_data_source"
_PUSHDOWN_PROCESS = "pyspark.sql.worker.data_source_pushdown_filters"


class KuduliteDataSource(DataSource):
    """A kudulite table as a Spark source and sink; its options are in `kudulite_spark.options`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Fix the snapshot if this is a load(): with a schema given, schema() is not called."""
        super().__init__(options)
        self._moments: Moments | None = None
        self._table_id: str | None = None  # of the table that they are moments of
        self._known_schema: Schema | None = None
        is_of_catalog = CATALOG in options or options.get(FRONT) == CATALOG_LOAD
        if _is_called_from(_LOAD_PROCESS) and not is_of_catalog:  # schema() will be called
            self._fix_snapshot_of_load()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kudulite"

    def schema(self) -> StructType:
        """Return the Spark schema of the table, or of the `columns` asked for.

        For the catalog: the answer to its question, or a schema with a note on the table."""
        if CATALOG in self.options:
            found = answered(self._place(), self.options[CATALOG])
        elif self.options.get(FRONT) == CATALOG_LOAD:
            found = self._noted_schema()
        else:
            found = self._schema()
        end_work()
        return found

    def _noted_schema(self) -> StructType:
        """Return the answer to a load() of the catalog, which an error is, too."""
        try:
            if (name := self._metadata_name()) is not None:
                return self._metadata_schema(name)
            return self._schema()
        except KuduliteError as error:
            return load_failed(error, self._place())

    def _metadata_name(self) -> str | None:
        """Return the name of the metadata table that a load() of the catalog is of, if it is."""
        if self.options.get(FRONT) != CATALOG_LOAD:
            return None
        return metadata_name(self._place())

    def _place(self) -> Place:
        return Place(absolute_path(self.options.get("path", "")), self.options)

    def _metadata_schema(self, name: str) -> StructType:
        """Return the columns of a metadata table, and fix the window of changes that is given."""
        table, read = self._table_of_metadata()
        if read.snapshot_timestamp is not None or (read.is_of_changes and name != CHANGES):
            raise OptionError(
                f"metadata table {name!r} of {str(table.path)!r} shows the newest version; a moment"
                " in the past is for rows"
            )
        if read.is_of_changes:
            self._moments = chosen_moments(table, read)
        return with_metadata_note(metadata_schema(name, table.schema))

    def _metadata_reader(self, name: str, schema: StructType) -> DataSourceReader:
        table, read = self._table_of_metadata()
        if name != CHANGES:
            return MetadataReader(str(table.path), name, schema, read.storage_options)
        if self._moments is None:
            raise OptionError(
                f"the changes of {str(table.path)!r} need a start: SELECT … FROM"
                f" {table.name}.changes WITH (startTimestamp = 'a moment or HybridTime')"
            )
        # Spark asks for the columns before it shows the window, so they are those of now.
        plan = scan_plan(schema, table, table.schema, read, is_of_changes=True)
        return TabletReader(plan.at(*self._moments))

    def _table_of_metadata(self) -> tuple[Table, ReadOptions]:
        read = ReadOptions.parse(self.options)
        parent = os.path.dirname(absolute_path(read.path))
        table = kudulite.open_table(parent, storage_options=read.storage_options)
        return table, read

    def _schema(self) -> StructType:
        if COUNT in self.options:
            self._table_id = self.options[COUNT].split()[1]
        for _ in range(_REPLACEMENTS_MAX):
            with suppress(TableNotFoundError):
                return self._schema_of_load()
            # Another table may have taken its name after it was opened; later opens find it by id.
            self._moments = self._known_schema = None
        return self._schema_of_load()

    def _schema_of_load(self) -> StructType:
        table, read = self._opened()
        if self._moments is None:
            self._fix_moments(table, read)
        schema = self._table_schema(table)
        read = with_own_names(read, table, schema)
        if read.filter is not None:
            _conditions(read.filter, schema)  # report a mistake at load()
        found = own_schema(schema, read)
        if FRONT in self.options and not read.is_of_changes:
            found = with_row_count(found, *self._row_count(table, read))
        if self.options.get(FRONT) == CATALOG_LOAD:
            assert self._moments is not None
            found = with_table_note(found, table, schema, self._moments[0])
        return found

    def _row_count(self, table: Table, read: ReadOptions) -> tuple[int, str | None]:
        """Return how many rows a read returns, and the snapshot at which they can be counted.

        The number is an estimate, unless the option is given that asks for the count.
        """
        if COUNT in self.options:
            return table.scan(columns=[], at=self.options[COUNT].split()[0]).count(), None
        if read.scan_tokens is not None:
            tokens = decoded_tokens(read.scan_tokens, str(table.path), read.storage_options)
            return sum(token.row_count_estimate for token in tokens), None
        counted_at = None
        if read.filter is None and self._moments is not None:
            counted_at = f"{self._moments[0]} {self._table_id}"
        return table.live_row_count, counted_at

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns in `schema`, at the snapshot fixed by load()."""
        if (name := self._metadata_name()) is not None:
            return self._metadata_reader(name, schema)
        table, read = self._opened()
        refuse_stream_options(read)
        if self._moments is None:
            self._moments = chosen_moments(table, read)
        own = self._table_schema(table)
        plan = scan_plan(schema, table, own, with_own_names(read, table, own), read.is_of_changes)
        plan = plan.at(*self._moments)
        end_work()
        # The JVM extension plans each scan for itself, so it may always push.
        may_push = read.pushdown or (FRONT in self.options and not read.is_of_changes)
        if may_push and _is_called_from(_PUSHDOWN_PROCESS):
            return PushingTabletReader(plan)
        return TabletReader(plan)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Check the write, make the table if the options ask for it, and return the writer."""
        place = self._place()
        if metadata_name(place) is not None:
            raise NotSupportedError(
                f"{place.path!r} is a metadata table, which cannot be written to"
            )
        planned = plan_write(WriteOptions.parse(self.options), schema, overwrite)
        end_work()
        return TableWriter(planned)

    def streamReader(self, schema: StructType) -> TableStreamReader:
        """Return the reader of a stream with the columns in `schema`."""
        ReadOptions.check_stream(self.options)
        table, read = self._opened()
        own = self._table_schema(table)
        plan = scan_plan(schema, table, own, with_own_names(read, table, own), is_of_changes=True)
        start = StreamStart.of_option(read.start_timestamp)
        return TableStreamReader(plan, start, read.max_rows_per_trigger)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamTableWriter:
        """Return the writer of one batch; the process that plans the batch begins the write."""
        options = WriteOptions.parse_stream(self.options)
        if not _is_called_from(_WRITE_PROCESS):
            return StreamTableWriter()
        checkpoint = self.options.get(CHECKPOINT)
        owner = None if checkpoint is None else f"stream {checkpoint}"
        planned = plan_write(options, schema, overwrite, owner)
        end_work()
        return StreamTableWriter(planned)

    def _opened(self) -> tuple[Table, ReadOptions]:
        """Open the table and parse the options."""
        read = ReadOptions.parse(self.options)
        table = kudulite.open_table(
            absolute_path(read.path),
            table_id=self._table_id,
            storage_options=read.storage_options,
        )
        return table, read

    def _table_schema(self, table: Table) -> Schema:
        """Return the schema of load(): that of the moment that it fixed, or of a stream's now."""
        if self._known_schema is None:
            at = self._moments
            self._known_schema = table.schema if at is None else table.schema_at(at[0])
        return self._known_schema

    def _fix_snapshot_of_load(self) -> None:
        if CHECKPOINT in self.options:
            return  # this is the target of a stream
        try:
            table, read = self._opened()
        except (TableNotFoundError, OptionError):
            # A view with a schema may be created before its table is; and this load() may be a
            # write, with options that no read has.
            return
        self._fix_moments(table, read)

    def _fix_moments(self, table: Table, read: ReadOptions) -> None:
        """Fix the moments of a load(), and the table that they are of."""
        table_id = table.id
        self._moments = moments_of_load(table, read)
        self._table_id = None if self._moments is None else table_id
        self._table_schema(table)


def chosen_moments(table: Table, read: ReadOptions) -> Moments:
    """Return the moments that a load() asks for, checked and made safe; the default is now."""
    # Planning a read does both; no row is read.
    if read.start_timestamp is None:
        return table.scan(columns=[], at=read.snapshot_timestamp).timestamp, None
    changes = table.changes(read.start_timestamp, read.end_timestamp, columns=[])
    return changes.end, changes.start


def moments_of_load(table: Table, read: ReadOptions) -> Moments | None:
    """Return the moments that a load() fixes; None for a stream, which fixes none.

    Spark does not say whether a load() is for a batch or a stream. A start that is too old is
    therefore no error yet: a stream may continue from a newer checkpoint.
    """
    if read.is_of_stream:
        return None
    try:
        return chosen_moments(table, read)
    except TimestampError:
        if read.is_of_changes and read.end_timestamp is None:
            return None  # the reader of a batch raises the error
        raise


def refuse_stream_options(read: ReadOptions) -> None:
    """Raise OptionError for an option that only streams have."""
    if read.is_of_stream:
        given = (
            f"'maxRowsPerTrigger' ({read.max_rows_per_trigger})"
            if read.max_rows_per_trigger is not None
            else f"'startTimestamp' ({read.start_timestamp!r})"
        )
        raise OptionError(
            f"option {given} belongs to a stream (spark.readStream); in a batch read of changes"
            " 'startTimestamp' is a moment, a batch read of rows has none"
        )


def own_schema(schema: Schema, read: ReadOptions) -> StructType:
    """Return the Spark schema of a load() without a schema of the user."""
    if read.is_of_changes:
        return change_schema(schema, read.columns)
    return spark_schema(schema, read.columns)


def with_own_names(read: ReadOptions, table: Table, schema: Schema) -> ReadOptions:
    """Return the options with column names in the case of the schema."""
    if read.columns is None:
        return read
    names = find_all(read.columns, schema.names, f"table {str(table.path)!r}")
    return replace(read, columns=tuple(names))


def scan_plan(
    wanted: StructType, table: Table, schema: Schema, read: ReadOptions, is_of_changes: bool
) -> ScanPlan:
    """Return the plan of a read of the columns in `wanted`, without its moments.

    The names mean columns of `schema`, which the table has or has had. Raises a UsageError for a
    schema of the user that does not fit it."""
    own_names = check_schema(wanted, str(table.path), schema, read, is_of_changes)
    fields = arrow_schema(wanted)
    names = fields.names
    if not names and not HAS_ROWS_WITHOUT_COLUMNS:
        raise OptionError(
            f"table {str(table.path)!r}: a read without columns needs PySpark 4.1 or newer; to"
            " count rows, give one column in option 'columns'"
        )
    if is_of_changes:
        names = [name for name in names if name not in CHANGE_COLUMNS]
    path = str(table.path)
    request = kudulite.ReadRequest(
        columns=tuple(own_names.get(name, name) for name in names),
        where=() if read.filter is None else _conditions(read.filter, schema),
        ordered=read.fault_tolerant_scan,
        images=read.change_images,
        schema=schema,
    )
    pinned = None
    if read.scan_tokens:
        pinned = decoded_tokens(read.scan_tokens, path, read.storage_options)
    return ScanPlan(
        path,
        table.id,
        request,
        fields,
        own_names,
        read.split_size_bytes,
        pinned,
        read.storage_options,
    )


def check_schema(
    wanted: StructType, path: str, schema: Schema, read: ReadOptions, is_of_changes: bool
) -> dict[str, str]:
    """Refuse a schema of the user in which the rows, or changes, cannot be read exactly.

    Returns the table's names of the columns that the schema has in another case."""
    if is_of_changes:
        own = change_schema(schema, read.columns)
        wanted = table_columns(wanted, path, own)
    own_names: dict[str, str] = {}
    for field in wanted.fields:
        name = find_column(field.name, schema.names, f"table {path!r}")
        if name != field.name:
            own_names[field.name] = name
        if read.columns is not None and name not in read.columns:
            raise OptionError(
                f"table {path!r}: the schema given asks for column {field.name!r}, which option"
                f" 'columns' leaves out: {', '.join(read.columns)}"
            )
        column = schema.column(name)
        if not is_exactly_readable(column.type, field.dataType):
            raise SchemaError(
                f"table {path!r}, column {field.name!r} is {column.type}; it cannot be read as"
                f" {field.dataType.simpleString()} exactly"
            )
        if column.nullable and not field.nullable:
            raise SchemaError(
                f"table {path!r}, column {field.name!r} may be NULL; the schema given says NOT NULL"
            )
    read_twice = {name for name in own_names.values() if name in wanted.names}
    if read_twice or len(set(own_names.values())) < len(own_names):
        raise SchemaError(
            f"table {path!r}: the schema given names a column twice, in different case:"
            f" {', '.join(wanted.names)}"
        )
    return own_names


def _conditions(text: str, schema: Schema) -> tuple[Condition, ...]:
    try:
        return kudulite.parse_where(text, schema)
    except UsageError as error:
        raise type(error)(f"option 'filter': {error}") from error


def _is_called_from(module: str) -> bool:
    """Whether a function of this module is on the stack: which of Spark's processes this is."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        names = frame.f_globals
        if module in (names.get("__name__"), getattr(names.get("__spec__"), "name", None)):
            return True
        frame = frame.f_back
    return False
