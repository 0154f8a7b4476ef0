"""Native scans: a scan as a Polars LazyFrame or a DuckDB relation; the engine reads base files.

    NativePlan ─┬─ files          Parquet scans of the engine, without excluded rows ─┐
                └─ rows, tokens   read here, of the columns that a query needs       ─┴─ union

A column of flags beside a file excludes its rows (DuckDB's positional join, Polars' horizontal
concatenation). Looking row numbers up in a hash table or a bit string costs two to ten times as
much. The engines read only the columns of a query. Its filters skip row groups of the files that
need no flags; in the others they are applied after the flags.

A scan with predicates, an order or a limit, or of a column that was widened since it was planned,
is read here as a whole: kudulite skips tablets, row groups and rows by them.

**Invariants** (1) the snapshot and the files are fixed when the native scan is made; (2) it can be
read as long as its files exist: for the grace time after a compaction has replaced them.

**Threads**: an engine may read one native scan in several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kudulite.client.native_plan import NativeColumn, NativeFile, NativeLimits, plan_native
from kudulite.client.scan import RowScan
from kudulite.client.tokens import read_tokens
from kudulite.errors import NotSupportedError, OptionError
from kudulite.table.read_request import Read, read_of

if TYPE_CHECKING:
    import duckdb
    import polars as pl

# Rows beside the files are read when a query runs, so that only its columns are decoded.
_LIMITS = NativeLimits(handed_bytes_max=0, decoded_bytes_max=0)
# DuckDB expands them in a path, and cannot escape them.
_GLOB_CHARACTERS = frozenset("*?[")

# Reads rows of some columns, in their order.
Reader = Callable[[Sequence[str]], Iterator[pa.RecordBatch]]


class Scan(RowScan):
    """The rows that match, at one settled timestamp; see `Table.scan`."""

    def to_polars(self) -> pl.LazyFrame:
        """Return a Polars LazyFrame of the rows; Polars reads base files itself.

        The LazyFrame is one snapshot. It can be collected until the grace time (one hour) has
        passed since a compaction replaced some of its files. Raises NotSupportedError if Polars is
        not installed.
        """
        return _polars_frame(self._checked_schema("polars"), *self._parts(lambda file: True))

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation of the rows, of the default connection unless one is given.

        DuckDB reads base files itself. The relation is one snapshot. It can be read until the grace
        time (one hour) has passed since a compaction replaced some of its files. Raises
        NotSupportedError if DuckDB is not installed.
        """
        schema = self._checked_schema("duckdb")
        return _duckdb_relation(schema, *self._parts(_is_readable_by_duckdb), connection)

    def _checked_schema(self, engine: str) -> pa.Schema:
        if not len(self.schema):
            raise OptionError(f"a scan without columns cannot be passed to {engine}; use count()")
        return self.schema

    def _parts(
        self, is_readable: Callable[[NativeFile], bool]
    ) -> tuple[Sequence[NativeFile], Reader | None]:
        """Return the files for an engine, and the reader of all other rows if there are any."""
        read = self._read.newest()
        request, columns = read.plan.request, read.columns
        if request.where or request.ordered or request.limit is not None:
            return (), self._read_columns
        plan = plan_native(
            read,
            lambda file: [item.column for item in file.columns] == columns and is_readable(file),
            _LIMITS,
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
) -> tuple[list[list[NativeFile]], list[NativeFile]]:
    """Return files without excluded rows, those of one layout together, and the other files.

    Files of one layout have the columns under the same names in the same types.
    """
    clean: dict[tuple[object, ...], list[NativeFile]] = {}
    for file in files:
        if not len(file.excluded):
            layout = tuple((item.stored_name, str(item.stored_type)) for item in file.columns)
            clean.setdefault(layout, []).append(file)
    return list(clean.values()), [file for file in files if len(file.excluded)]


def _flags(file: NativeFile) -> np.ndarray:
    """Return bool[n]: which rows of a file are part of the snapshot."""
    is_kept = np.ones(file.row_count, dtype=bool)
    is_kept[file.excluded] = False
    return is_kept


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
    flag = _unused_name(schema)

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
        found = pl.scan_parquet([file.path for file in group], glob=False, hive_partitioning=False)
        return found.select(values(item) for item in group[0].columns)

    clean, dirty = _clean_and_dirty(files)
    parts = [scan(group) for group in clean]
    for file in dirty:
        flags = pl.LazyFrame({flag: _flags(file)})
        whole = pl.concat([scan([file]), flags], how="horizontal")
        parts.append(whole.filter(pl.col(flag)).drop(flag))
    if rest is not None:
        parts.append(register_io_source(read_rest, schema=types))
    return parts[0] if len(parts) == 1 else pl.concat(parts)


# -- DuckDB


def _is_readable_by_duckdb(file: NativeFile) -> bool:
    # DuckDB ignores the case of names, and renames one of two equal ones.
    lowered = {name.lower() for name in file.stored_names}
    return len(lowered) == len(file.stored_names) and _GLOB_CHARACTERS.isdisjoint(file.path)


def _dataset_of(schema: pa.Schema, read: Reader) -> Any:
    """Return the rows that kudulite reads as a dataset; DuckDB says which columns it needs."""
    # Imported here, because it imports pandas where that is installed: 0.25 s of every process.
    import pyarrow.dataset as ds

    class RestOfRows(ds.Dataset):  # type: ignore[misc]
        @property
        def schema(self) -> pa.Schema:
            return schema

        def scanner(
            self, columns: Sequence[str] | None = None, filter: Any = None, **options: Any
        ) -> ds.Scanner:
            names = schema.names if columns is None else columns
            # A text that contains a column's name may just be a value: it is then read in vain.
            text = "" if filter is None else str(filter)
            needed = [name for name in schema.names if name in names or name in text]
            batches, read_schema = read(needed), pa.schema([schema.field(n) for n in needed])
            return ds.Scanner.from_batches(
                batches, schema=read_schema, columns=list(names), filter=filter
            )

    # Dataset has no constructor for Python.
    return RestOfRows.__new__(RestOfRows)


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
    types = dict(zip(schema.names, duck.from_arrow(schema.empty_table()).types, strict=True))
    flag = _unused_name(schema)

    def values(item: NativeColumn) -> duckdb.Expression:
        own = types[item.column.name]
        if item.stored_name is None:
            found = duckdb.ConstantExpression(item.default).cast(own)
        else:
            found = duckdb.ColumnExpression(item.stored_name)
            found = found if item.stored_type == item.column.type.arrow else found.cast(own)
        return found.alias(item.column.name)

    def scan(group: Sequence[NativeFile]) -> duckdb.DuckDBPyRelation:
        paths = ", ".join("'" + file.path.replace("'", "''") + "'" for file in group)
        # Parquet statistics ignore NaN, and DuckDB would skip rows that have it.
        options = "hive_partitioning = false, can_have_nan = true"
        found = duck.sql(f"FROM read_parquet([{paths}], {options})")
        return found.select(*(values(item) for item in group[0].columns))

    clean, dirty = _clean_and_dirty(files)
    parts = [scan(group) for group in clean]
    for file in dirty:
        flags = duck.from_arrow(pa.table({flag: _flags(file)}))
        parts.append(_flagged(duck, flag, scan([file]), flags))
    if rest is not None:
        parts.append(duck.from_arrow(_dataset_of(schema, rest)))
    while len(parts) > 1:  # pairs, so that the query is not deep
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [pair[0].union(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def _flagged(
    duck: duckdb.DuckDBPyConnection,
    flag: str,
    stored: duckdb.DuckDBPyRelation,
    flags: duckdb.DuckDBPyRelation,
) -> duckdb.DuckDBPyRelation:
    """Return the rows of `stored` whose flag is true; DuckDB finds the relations by their names."""
    query = f"SELECT * EXCLUDE ({flag}) FROM stored POSITIONAL JOIN flags WHERE {flag}"
    return duck.sql(query)
