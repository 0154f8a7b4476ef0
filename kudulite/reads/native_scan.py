"""Native scans: a scan as a Polars LazyFrame or a DuckDB relation; the engine reads base files.

    NativePlan ─┬─ files          Parquet scans of the engine                         ─┐
                │                 beside dirty ones: an overlay, joined by position    ├─ union
                └─ rows, tokens   read here, of the columns that a query needs        ─┘

An overlay has flags that exclude rows, and the changed cells of columns; see `native_overlay`. The
join is DuckDB's positional join or Polars' horizontal concatenation. Looking row numbers up in a
hash table or a bit string costs two to ten times as much. Rows of which a change has set all cells
are excluded and read here, from deltas alone: an overlay of all columns would cost the engines more
than a filter. So kudulite decodes base data only for keys of such rows and for rows in memory.

The engines read only the columns of a query. Its filters skip row groups of the files that have no
overlay; in the others they are applied after the join.

DuckDB answers filters, and `min` and `max` without a filter, from statistics of the files. These
leave NaN out, which DuckDB takes for the greatest number. With its option `can_have_nan`, it takes
NaN for the greatest value of all columns, also of those without one. So columns that may have a
NaN are hidden from its statistics by an expression that returns them as they are.

A scan with predicates, an order or a limit, or of a column that was widened since it was planned,
is read here as a whole: kudulite skips tablets, row groups and rows by them.

**Invariants**: (1) the snapshot and the files are fixed when the native scan is made; (2) it can be
read as long as its files exist: for the grace time after a compaction has replaced them.

**Threads**: an engine may read one native scan in several threads.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kudulite.basefile.base_data import ROW_GROUP_ROWS
from kudulite.errors import NotSupportedError, OptionError
from kudulite.model.types import ColumnType
from kudulite.reads.native_overlay import Overlay
from kudulite.reads.native_plan import (
    NativeColumn,
    NativeFile,
    NativeLimits,
    plan_native,
)
from kudulite.reads.scan import READ_THREADS, RowScan
from kudulite.reads.tokens import read_tokens
from kudulite.table.read_request import Read, read_of

if TYPE_CHECKING:
    import duckdb
    import polars as pl

# Rows beside the files are read when a query runs, so that only its columns are decoded.
_LIMITS = NativeLimits(
    excluded_fraction_max=1, excluded_rows_max=sys.maxsize, handed_bytes_max=0, decoded_bytes_max=0
)
# DuckDB expands them in a path, and cannot escape them.
_GLOB_CHARACTERS = frozenset("*?[")
# The names of a file and of its overlay in a query of DuckDB.
_STORED, _NEW = "stored", "overlay"
# A row beside the files, which is read in one thread, takes as long as so many rows of a file.
_REST_WEIGHT = 2

# Reads rows of some columns, in their order.
Reader = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


class Scan(RowScan):
    """The rows that match, at one settled timestamp; see `Table.scan`."""

    def to_polars(self) -> pl.LazyFrame:
        """Return a Polars LazyFrame of the rows; Polars reads base files itself.

        The LazyFrame is one snapshot. It can be collected until the grace time (one hour) has
        passed since a compaction replaced some of its files. After that, or after a purge, Polars
        raises a FileNotFoundError: make the LazyFrame again. Raises NotSupportedError if Polars is
        not installed.
        """
        return _polars_frame(self._checked_schema("polars"), *self._parts(lambda file: True))

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation of the rows, of the default connection unless one is given.

        DuckDB reads base files itself. The relation is one snapshot. It can be read until the grace
        time (one hour) has passed since a compaction replaced some of its files. After that, or
        after a purge, DuckDB raises an IOException ("No files found"): make the relation again.
        Raises NotSupportedError if DuckDB is not installed.
        """
        schema = self._checked_schema("duckdb")
        return _duckdb_relation(schema, *self._parts(_is_readable_by_duckdb), connection)

    def _checked_schema(self, engine: str) -> pa.Schema:
        if not len(self.schema):
            raise OptionError(f"a scan without columns cannot be passed to {engine}; use count()")
        if len(set(self.schema.names)) < len(self.schema):
            raise OptionError(
                f"a scan of a column twice, {self.schema.names}, cannot be passed to {engine}"
            )
        return self.schema

    def _parts(
        self, is_readable: Callable[[NativeFile], bool]
    ) -> tuple[Sequence[NativeFile], Reader | None]:
        """Return the files for an engine, and the reader of all other rows if there are any."""
        read = self._read.newest()
        request, columns = read.plan.request, read.columns
        has_order = request.ordered or request.order_by
        is_all = not (request.where or has_order or request.limit is not None)
        if not is_all or not read.store.storage.has_paths:
            return (), self._read_columns
        plan = plan_native(
            read,
            lambda file: [item.column for item in file.columns] == columns and is_readable(file),
            _LIMITS,
            with_overlays=True,
        )

        def read_rest(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            yield from plan.rows.select(names).to_batches()
            yield from read_tokens(plan.tokens, names)

        has_rest = plan.rows.num_rows or plan.tokens or not plan.files
        return plan.files, read_rest if has_rest else None

    def _read_columns(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        read: Read[Any] = self._read.newest()
        plan = read.plan.of_columns(names, read.plan.request.where)
        return self._batches(read_of(read.store, read.manifest, plan))


def _clean_and_dirty(
    files: Sequence[NativeFile],
) -> tuple[list[list[NativeFile]], list[list[NativeFile]]]:
    """Return files that need no overlay and files that do, those of one layout together.

    Files of one layout have the columns under the same names in the same types.
    """
    groups: dict[bool, dict[tuple[object, ...], list[NativeFile]]] = {False: {}, True: {}}
    for file in files:
        layout = tuple((item.stored_name, str(item.stored_type)) for item in file.columns)
        groups[file.is_changed].setdefault(layout, []).append(file)
    return list(groups[False].values()), list(groups[True].values())


def _by_nan(files: Sequence[NativeFile]) -> list[list[NativeFile]]:
    """Return the files that have no NaN, and those that may have one."""
    parts: dict[bool, list[NativeFile]] = {False: [], True: []}
    for file in files:
        parts[any(item.may_have_nan for item in file.columns)].append(file)
    return [part for part in parts.values() if part]


def _balanced(files: Sequence[NativeFile], rest_rows: int) -> list[list[NativeFile]]:
    """Return the files in a part for each thread, of about as many rows.

    The last part is smaller by the rows beside the files: an engine begins those first.
    """
    parts: list[list[NativeFile]] = [[] for _ in range(READ_THREADS)]
    sizes = [0] * (READ_THREADS - 1) + [_REST_WEIGHT * rest_rows]
    for file in sorted(files, key=lambda file: -file.row_count):
        least = sizes.index(min(sizes))
        parts[least].append(file)
        sizes[least] += file.row_count
    return [part for part in parts if part]


def _unused_name(schema: pa.Schema) -> str:
    """Return a name that no column has, because it is longer than all of them."""
    return "_" * (1 + max(map(len, schema.names)))


def _not_installed(name: str, package: str) -> NotSupportedError:
    return NotSupportedError(f"{name} is not installed; run: pip install {package}")


# -- Polars


def _polars_frame(
    schema: pa.Schema, files: Sequence[NativeFile], rest: Reader | None
) -> pl.LazyFrame:
    try:
        import polars as pl
        from polars.io.plugins import register_io_source
    except ImportError as error:
        raise _not_installed("Polars", "polars") from error
    types = pl.DataFrame(schema.empty_table()).schema

    def values(item: NativeColumn) -> pl.Expr:
        own = types[item.column.name]
        if item.stored_name is None:
            found = pl.lit(item.default, own)
        else:
            found = pl.col(item.stored_name)
            found = found if item.stored_type == item.column.type.arrow else found.cast(own)
        return found.alias(item.column.name)

    def read_rest(
        names: list[str] | None, predicate: pl.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        assert rest is not None
        for batch in rest(schema.names if names is None else names):
            frame = pl.DataFrame(batch)
            frame = frame if predicate is None else frame.filter(predicate)
            frame = frame if limit is None else frame.head(limit)
            limit = None if limit is None else limit - frame.height
            yield frame
            if limit == 0:
                return

    def scan(group: Sequence[NativeFile]) -> pl.LazyFrame:
        found = pl.scan_parquet(
            [file.path for file in group],
            glob=False,
            hive_partitioning=False,
            extra_columns="ignore",
        )
        return found.select(values(item) for item in group[0].columns)

    clean, dirty = _clean_and_dirty(files)
    parts = [scan(group) for group in clean]
    for group in dirty:
        parts.append(_with_overlay(scan(group), Overlay(group, _unused_name(schema)), schema.names))
    if rest is not None:
        parts.append(register_io_source(read_rest, schema=types))
    return parts[0] if len(parts) == 1 else pl.concat(parts)


def _with_overlay(stored: pl.LazyFrame, overlay: Overlay, columns: Sequence[str]) -> pl.LazyFrame:
    """Return the rows of some files as their overlay has them."""
    import polars as pl
    from polars.io.plugins import register_io_source

    def read(
        names: list[str] | None, predicate: pl.Expr | None, limit: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        assert predicate is None, "a filter below a join by position would move the rows"
        for batch in overlay.read(overlay.schema.names if names is None else names):
            yield pl.DataFrame(batch if limit is None else batch.slice(0, limit))
            limit = None if limit is None else max(0, limit - batch.num_rows)

    beside = register_io_source(read, schema=pl.DataFrame(overlay.schema.empty_table()).schema)
    whole = pl.concat([stored, beside], how="horizontal").filter(pl.col(overlay.kept))
    return whole.select(
        pl.col(name)
        if (names := overlay.names_of(name)) is None
        else pl.when(names[0]).then(names[1]).otherwise(name).alias(name)
        for name in columns
    )


# -- DuckDB


def _is_readable_by_duckdb(file: NativeFile) -> bool:
    # DuckDB ignores the case of names, and renames one of two equal ones.
    lowered = {name.lower() for name in file.stored_names}
    return len(lowered) == len(file.stored_names) and _GLOB_CHARACTERS.isdisjoint(file.path)


def _dataset_of(schema: pa.Schema, read: Reader) -> Any:
    """Return rows that kudulite reads as a dataset; DuckDB says which columns it needs."""
    # Imported here, because it imports pandas where that is installed: 0.25 s of every process.
    import pyarrow.dataset as ds

    class LazyRows(ds.Dataset):  # type: ignore[misc]
        @property
        def schema(self) -> pa.Schema:
            return schema

        def scanner(
            self, columns: Sequence[str] | None = None, filter: Any = None, **options: Any
        ) -> Any:
            names = schema.names if columns is None else columns
            # A text that contains a column's name may just be a value: it is then read in vain.
            text = "" if filter is None else str(filter)
            needed = [name for name in schema.names if name in names or name in text]
            batches, read_schema = read(needed), pa.schema([schema.field(n) for n in needed])
            if filter is None and needed == list(names):
                return _Reading(pa.RecordBatchReader.from_batches(read_schema, batches))
            return ds.Scanner.from_batches(
                batches, schema=read_schema, columns=list(names), filter=filter
            )

    # Dataset has no constructor for Python.
    return LazyRows.__new__(LazyRows)


class _Reading:
    """A scanner without a filter, which has no threads of its own."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader


class _UnionQuery:
    """The text of a query over all parts of a plan, and the Python objects that it names.

    One text is one bind for DuckDB; a relation that is put together step by step is bound at each.
    """

    def __init__(self, types: dict[str, str]) -> None:
        """`types` are those of DuckDB, by the name of the column."""
        self._types = types
        self._parts: list[str] = []
        self.objects: dict[str, Any] = {}

    @property
    def text(self) -> str:
        """The query."""
        return " UNION ALL ".join(self._parts)

    def add_files(self, group: Sequence[NativeFile]) -> None:
        """Add all rows of files of one layout."""
        values = [f"{value} AS {_quoted(name)}" for name, value in self._values(group)]
        self._parts.append(f"SELECT {', '.join(values)} FROM {_parquet(group)}")

    def add_overlaid(self, group: Sequence[NativeFile]) -> None:
        """Add the rows of files of one layout with their overlay."""
        # DuckDB reads bytes as they are, and unpacks bits one by one.
        overlay, values = Overlay(group, "kept", pa.uint8()), []
        for name, value in self._values(group):
            if (names := overlay.names_of(name)) is not None:
                value = f"CASE WHEN {_NEW}.{names[0]} > 0 THEN {_NEW}.{names[1]} ELSE {value} END"
            values.append(f"{value} AS {_quoted(name)}")
        beside = self._named(
            _dataset_of(overlay.schema, lambda names: overlay.read(names, ROW_GROUP_ROWS))
        )
        self._parts.append(
            f"SELECT {', '.join(values)} FROM {_parquet(group)}"
            f" POSITIONAL JOIN {beside} AS {_NEW} WHERE {_NEW}.{overlay.kept} > 0"
        )

    def add_rows(self, rows: Any) -> None:
        """Add the rows of a dataset."""
        self._parts.append(f"SELECT * FROM {self._named(rows)}")

    def _values(self, group: Sequence[NativeFile]) -> Iterator[tuple[str, str]]:
        """Yield the name of each column, and its expression over files of one layout."""
        for items in zip(*(file.columns for file in group), strict=True):
            may_have_nan = any(item.may_have_nan for item in items)
            yield items[0].column.name, self._value(items[0], may_have_nan)

    def _value(self, item: NativeColumn, may_have_nan: bool) -> str:
        own = self._types[item.column.name]
        if item.stored_name is not None:
            found = f"{_STORED}.{_quoted(item.stored_name)}"
            found = _without_statistics(found, item.column.type) if may_have_nan else found
            is_own = item.stored_type == item.column.type.arrow
            return found if is_own else f"CAST({found} AS {own})"
        if item.default is None:
            return f"CAST(NULL AS {own})"
        default = pa.table({"value": pa.array([item.default], item.column.type.arrow)})
        return f"(SELECT value FROM {self._named(default)})"

    def _named(self, found: Any) -> str:
        # A table of this name would hide the object.
        name = f"kudulite_{uuid.uuid4().hex}"
        self.objects[name] = found
        return name


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parquet(group: Sequence[NativeFile]) -> str:
    paths = ", ".join("'" + file.path.replace("'", "''") + "'" for file in group)
    return f"read_parquet([{paths}], hive_partitioning = false) AS {_STORED}"


def _without_statistics(value: str, kind: ColumnType) -> str:
    """Return an expression of the same floats, or arrays of them, of which NaN may be one."""
    nan = f"'NaN'::{kind.name}" if kind.element is None else f"['NaN'::{kind.element.name}]"
    # An array that equals this one is enough for DuckDB to know that elements may be NaN.
    is_nan = f"isnan({value})" if kind.element is None else f"{value} = {nan}"
    return f"CASE WHEN {is_nan} THEN {nan} ELSE {value} END"


def _duckdb_relation(
    schema: pa.Schema,
    files: Sequence[NativeFile],
    rest: Reader | None,
    connection: duckdb.DuckDBPyConnection | None,
) -> duckdb.DuckDBPyRelation:
    try:
        import duckdb
    except ImportError as error:
        raise _not_installed("DuckDB", "duckdb") from error
    duck = connection or duckdb.default_connection()
    if not files:
        assert rest is not None
        return duck.from_arrow(_dataset_of(schema, rest))
    types = duck.from_arrow(schema.empty_table()).types
    query = _UnionQuery(dict(zip(schema.names, map(str, types), strict=True)))
    clean, dirty = _clean_and_dirty(files)
    for group in dirty:
        # Joins by position run in one thread each, and each costs a millisecond of binding.
        for part in _balanced(group, sum(len(file.excluded) for file in group)):
            query.add_overlaid(part)
    for group in clean:
        # Filters skip row groups by the floats of those files that have no NaN.
        for part in _by_nan(group):
            query.add_files(part)
    if rest is not None:
        query.add_rows(_dataset_of(schema, rest))
    # DuckDB finds Python objects by the names of its caller's variables, and keeps them.
    variables = {"duck": duck, "text": query.text, **query.objects}
    relation: duckdb.DuckDBPyRelation = eval("duck.sql(text)", variables)
    return relation
