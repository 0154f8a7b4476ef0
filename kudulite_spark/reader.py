"""Reading: one input partition is some tokens, read into batches of exactly Spark's schema.

    planner: ScanPlan → scan tokens at one timestamp, or change tokens of one window
                      → TabletPartition …
    task:    TabletPartition → tokens → record batches, cast and cut to size

Only this module and its imports are loaded by tasks. It has no part in options and SQL.

With `pushdown=true`, or the JVM extension, Spark's filters become predicates (see `datasource`). A
filter without an exact counterpart is left out. Spark applies every filter again, so a predicate
only has to hold wherever its filter holds. Proved equal: NULL never matches a comparison, NaN = NaN
and is above all numbers, -0.0 = 0.0, strings and binary compare as unsigned bytes, timestamps as
instants in UTC. A NULL in an IN list can only make the result unknown, never true, so it is
dropped.

**Invariants**: (1) all partitions of a plan share one timestamp; (2) every batch has exactly the
schema that Spark derives from the DataFrame's (names, order, types, nullability); (3) a batch has
at most BATCH_ROWS_MAX rows, and close to that many if the tablets yield smaller ones.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

import kudulite
from kudulite_spark.python_worker import end_work
from kudulite_spark.types import CHANGE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from kudulite import Predicate, ReadRequest, RowSetToken, Table, Token

# Each batch has a fixed cost: 32 Ki rows are read as fast as 64 Ki, 16 Ki more slowly (measured).
BATCH_ROWS_MAX = 1 << 15
# A Python partition costs about 30 ms of a core, so small tablets are packed. But every core should
# get several partitions, so that no core waits long for the last one.
TASKS_PER_CORE = 2
SPLIT_BYTES_MIN, SPLIT_BYTES_MAX = 4 << 20, 32 << 20
# Data that compresses well has few bytes for many rows. So many are worth a task of their own.
SPLIT_ROWS_MIN = 1 << 18
NO_NAMES: Mapping[str, str] = MappingProxyType({})

# Of the classes of filters by their names, because PySpark 4.0 has none of them.
_OPERATORS = {
    "EqualNullSafe": "=",
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "StringStartsWith": "starts_with",
}
_OPERATORS_WITHOUT_VALUE = {"IsNull": "is_null", "IsNotNull": "is_not_null"}
# PySpark decodes pushed decimals under Python's default context, which rounds to this many digits.
_DECIMAL_DIGITS_EXACT = decimal.DefaultContext.prec
# Older days pass through Java's calendar, which lacks ten of 1582, and local mean times.
_YEAR_EXACT = 1901
# Spark passes a day as its midnight in the machine's zone. A day that the zone skipped has none,
# and arrives as the day after it. These are the days after all skipped ones: on Kwajalein, on
# Kiritimati and Enderbury (by older tables of zones a day later), in Samoa and on Fakaofo.
DAYS_INEXACT = frozenset(
    datetime.date(*day) for day in [(1993, 8, 22), (1995, 1, 1), (1995, 1, 2), (2011, 12, 31)]
)


@dataclass(frozen=True)
class ScanPlan:
    """One read of a DataFrame or a stream: rows of a table at a moment, or changes in a window."""

    path: str
    table_id: str
    request: ReadRequest  # in the table's names
    arrow_schema: pa.Schema  # of the batches to yield
    own_names: Mapping[str, str]  # the table's names of columns that it has in another case
    split_size_bytes: int | None = None  # per task, on disk; None fits it to table and cores
    # Read these pieces of a native plan, not the whole table.
    pinned: tuple[RowSetToken, ...] | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self) -> Table:
        """Open the table of the load, also where another one has its path now."""
        return kudulite.open_table(
            self.path, table_id=self.table_id, storage_options=self.storage_options
        )

    def at(self, timestamp: int, start: int | None = None) -> ScanPlan:
        """Return the plan of the rows at a safe timestamp, or of the changes from `start` to it."""
        return replace(self, request=replace(self.request, at=timestamp, start=start))


@dataclass(frozen=True)
class TabletPartition(InputPartition):
    """The work of one task: tokens, not scanners."""

    tokens: tuple[bytes, ...]
    value: None = field(default=None, repr=False)  # Spark's base class has it


class TabletReader(DataSourceReader):
    """Reads a plan. It defines no pushFilters, so that a DataFrame can be used again."""

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan

    def partitions(self) -> list[TabletPartition]:
        """Return tablets and key ranges that may hold matching rows, packed by size."""
        plan, request = self._plan, self._plan.request
        if plan.pinned is not None:
            pinned = [token.narrowed(request.columns or (), request.where) for token in plan.pinned]
            return packed(plan.split_size_bytes, lambda size: pinned)
        table = plan.open()
        return packed(plan.split_size_bytes, lambda size: table.tokens(request, size))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; in key order inside a tablet when the plan is ordered."""
        # If partitions() returned none, Spark makes one itself.
        if not isinstance(partition, TabletPartition):
            return
        for token in partition.tokens:
            batches = kudulite.Token.from_bytes(token).open()
            yield from fitted_batches(batches, self._plan.arrow_schema, self._plan.own_names)
        end_work()


class PushingTabletReader(TabletReader):
    """The reader of `pushdown=true`: skips rows that Spark's filters rule out.

    Stock PySpark 4.1 to 4.3 uses the reader that took one query's filters for the next query of
    the same DataFrame, too. Use it only if each DataFrame is used for one query."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Take the filters that have an exact counterpart; return all for Spark to apply again."""
        # Tablets have no columns of changes. A predicate on a column of the table selects rows that
        # match at either end of the window, so no row is missing that Spark's filter keeps.
        names, request = self._plan.own_names, self._plan.request
        pushed = [
            replace(predicate, column=names.get(predicate.column, predicate.column))
            for predicate in pushed_predicates(filters)
            if predicate.column not in CHANGE_COLUMNS
        ]
        request = replace(request, where=(*request.where, *pushed))
        self._plan = replace(self._plan, request=request)
        return filters


def packed(
    split_size_bytes: int | None, tokens_of_size: Callable[[int], Sequence[Token[Any]]]
) -> list[TabletPartition]:
    """Return the tokens of a plan, cut and packed by size; None fits it to table and cores."""
    split_size = split_size_bytes or SPLIT_BYTES_MAX
    tokens = tokens_of_size(split_size)
    if split_size_bytes is None:
        total = sum(token.size_bytes for token in tokens)
        row_count = sum(token.row_count_estimate for token in tokens)
        split_size = total // (TASKS_PER_CORE * (os.cpu_count() or 1))
        least = min(SPLIT_BYTES_MIN, SPLIT_ROWS_MIN * total // max(row_count, 1))
        split_size = min(max(split_size, least, 1), SPLIT_BYTES_MAX)
        if any(token.size_bytes > 2 * split_size for token in tokens):
            tokens = tokens_of_size(split_size)
    groups = kudulite.pack_tokens(tokens, split_size)
    return [TabletPartition(tuple(token.to_bytes() for token in group)) for group in groups]


def encoded_tokens(tokens: Sequence[RowSetToken]) -> str:
    """Return tokens as compressed text for an option; they share most of their content."""
    content = json.dumps([token.to_json() for token in tokens])
    # Tokens may name many rows: level 1 takes a tenth of the time, and base 85 is slow in Python.
    return base64.b64encode(zlib.compress(content.encode(), 1)).decode()


def decoded_tokens(
    text: str, folder: str, storage_options: Mapping[str, str] | None = None
) -> tuple[RowSetToken, ...]:
    """Return the tokens of `encoded_tokens`, of the table in `folder`."""
    content = json.loads(zlib.decompress(base64.b64decode(text)))
    return tuple(kudulite.RowSetToken.of_table(folder, value, storage_options) for value in content)


def fitted_batches(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    own_names: Mapping[str, str] = NO_NAMES,
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows as batches of exactly `schema` with at most BATCH_ROWS_MAX rows each.

    `own_names` are the batches' names of columns that `schema` has in another case."""
    pending: list[pa.RecordBatch] = []
    pending_count = 0
    for batch in batches:
        fitted = _fitted(batch, schema, own_names)
        if pending_count + fitted.num_rows > BATCH_ROWS_MAX and pending:
            yield _joined(pending)
            pending, pending_count = [], 0
        start = 0
        while fitted.num_rows - start > BATCH_ROWS_MAX:
            yield fitted.slice(start, BATCH_ROWS_MAX)
            start += BATCH_ROWS_MAX
        if fitted.num_rows > start:
            pending.append(fitted.slice(start))
            pending_count += fitted.num_rows - start
    if pending:
        yield _joined(pending)


def _fitted(
    batch: pa.RecordBatch, schema: pa.Schema, own_names: Mapping[str, str]
) -> pa.RecordBatch:
    if not schema.names:
        return _rows_without_columns(batch.num_rows)
    if batch.schema.equals(schema):
        return batch
    columns = []
    for wanted in schema:
        own = batch.column(own_names.get(wanted.name, wanted.name))
        columns.append(own if own.type == wanted.type else own.cast(wanted.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows_without_columns(row_count: int) -> pa.RecordBatch:
    # count(*) needs batches with rows and no columns; there is no other way to make one.
    empty = pa.StructArray.from_buffers(pa.struct([]), row_count, [None])
    return pa.RecordBatch.from_struct_array(empty)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches[0].schema.names:
        return _rows_without_columns(sum(batch.num_rows for batch in batches))
    return pa.concat_batches(batches)


def pushed_predicates(filters: Iterable[Filter]) -> list[Predicate]:
    """Return the predicates of the filters that have an exact counterpart."""
    found = (pushed_predicate(spark_filter) for spark_filter in filters)
    return [predicate for predicate in found if predicate is not None]


def pushed_predicate(spark_filter: Filter) -> Predicate | None:
    """Return the predicate that means the same as a pushed filter, or None."""
    path: tuple[str, ...] = getattr(spark_filter, "attribute", ())
    if len(path) != 1:
        return None
    column = path[0]
    kind, value = type(spark_filter).__name__, getattr(spark_filter, "value", None)
    if kind in _OPERATORS_WITHOUT_VALUE:
        return kudulite.Predicate(column, _OPERATORS_WITHOUT_VALUE[kind], None)
    if kind == "In":
        values = tuple(item for item in value or () if item is not None)
        return kudulite.Predicate(column, "in", values) if all(map(_is_exact, values)) else None
    if kind not in _OPERATORS or value is None or not _is_exact(value):
        return None
    return kudulite.Predicate(column, _OPERATORS[kind], value)


def _is_exact(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):  # arrays are compared with nothing
        return False
    if isinstance(value, decimal.Decimal):
        return len(value.as_tuple().digits) < _DECIMAL_DIGITS_EXACT
    return not isinstance(value, datetime.date) or (
        value.year >= _YEAR_EXACT and value not in DAYS_INEXACT
    )
