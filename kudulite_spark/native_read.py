"""`read_table`: a table at one snapshot, its base data read by Spark's own Parquet reader.

    Table.native_plan ─┬─ files    Spark's scans (native_scan.py)            ─┐
                       ├─ rows     few rows, handed to Spark as Arrow         ├─ union
                       └─ tokens   the Python source, for all that is left   ─┘

Spark prunes columns, pushes filters, skips row groups and knows sizes for the files as for any
Parquet; a table without deltas is nothing but its files. The snapshot is fixed by the call, and so
are the files: a DataFrame lives for the grace time after a compaction has replaced some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from os import PathLike
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from kudulite import NativeLimits, NativePlan, Predicate, Schema, Table
from kudulite.errors import OptionError
from kudulite_spark.column_names import find_all
from kudulite_spark.filter_text import parse_filter
from kudulite_spark.literals import condition
from kudulite_spark.native_scan import FileReader, backquoted, quoted, scans
from kudulite_spark.options import SCAN_TOKENS, parse_names
from kudulite_spark.reader import encoded_tokens
from kudulite_spark.session import start_directory
from kudulite_spark.table_path import absolute_path, open_table
from kudulite_spark.types import spark_schema

LIMITS = NativeLimits()
# Queries of wider tables ask for few of their columns. What a plan hands over it decodes in all of
# them; what it leaves to the source is read lazily, and with the front in these columns alone.
COLUMNS_MANY = 32


def read_table(
    spark: SparkSession,
    path: str | PathLike[str],
    snapshot: Any = None,
    columns: str | Sequence[str] | None = None,
    where: str | Predicate | Sequence[Predicate] | None = None,
) -> DataFrame:
    """Return the rows of the table at `path` as a DataFrame, as of `snapshot` (inclusive) or now.

    `snapshot` is a datetime, ISO text or a HybridTime. `columns` (a sequence, or text
    as in the option) and `where` (text as in the option `filter`, or predicates `table["host"] ==
    "a"`) spare planning work on large tables; Spark prunes and filters by itself as well. The
    rows are those of `format("kudulite")`.

    Raises as `Table.scan` does, and OptionError for text that is no filter."""
    table = open_table(absolute_path(path, start_directory(spark)))
    schema = table.schema
    predicates = _predicates(where, schema)
    names = schema.names
    if columns is not None:
        given = parse_names("columns", columns) if isinstance(columns, str) else columns
        names = find_all(given, names, f"table {str(table.path)!r}")
    needed = list(dict.fromkeys([*names, *(predicate.column for predicate in predicates)]))
    reader = FileReader.of(spark)
    plan = table.native_plan(
        columns=needed,
        where=predicates,
        at=snapshot,
        is_readable=reader.is_readable,
        limits=_limits(len(needed)),
    )
    frame = _frame(spark, table, plan)
    for found in plan.conditions:
        frame = frame.filter(condition(found, quoted(found.column.name)))
    return _selected(frame, plan, names)


def _limits(column_count: int) -> NativeLimits:
    share = min(1.0, COLUMNS_MANY / max(1, column_count)) ** 2
    return replace(LIMITS, decoded_bytes_max=int(LIMITS.decoded_bytes_max * share))


def _selected(frame: DataFrame, plan: NativePlan, names: Sequence[str]) -> DataFrame:
    """Return the columns asked for, with their comments; nothing is done where they are that."""
    wanted = spark_schema(plan.schema, names)
    if not names:
        return frame.select()
    if any(item.metadata for item in wanted):
        return frame.select(
            *(
                quoted(item.name).alias(item.name, metadata=item.metadata)
                if item.metadata
                else quoted(item.name)
                for item in wanted
            )
        )
    if [item.name for item in wanted] == [column.name for column in plan.columns]:
        return frame
    return frame.select(*(backquoted(item.name) for item in wanted))


def _predicates(
    where: str | Predicate | Sequence[Predicate] | None, schema: Schema
) -> list[Predicate]:
    if where is None:
        return []
    if isinstance(where, str):
        return list(parse_filter(where, schema))
    given: list[Any] = [where]
    if isinstance(where, Sequence) and not isinstance(where, Predicate):
        given = list(where)
    for predicate in given:
        if not isinstance(predicate, Predicate):
            raise OptionError(
                f"where: {predicate!r} is no predicate; give text as in option 'filter', or"
                " predicates as in table['host'] == 'a'. A condition of Spark goes into filter() of"
                " the DataFrame"
            )
    return given


def _frame(spark: SparkSession, table: Table, plan: NativePlan) -> DataFrame:
    parts = scans(spark, plan.files)
    if not plan.columns:
        parts = [part.select() for part in parts]
    if plan.rows.num_rows or not (parts or plan.tokens):
        parts.append(_handed_over(spark, plan))
    if plan.tokens:
        reader = spark.read.format("kudulite").option("snapshotTimestamp", str(plan.timestamp))
        content = encoded_tokens(plan.tokens)
        parts.append(
            reader.option(SCAN_TOKENS, content)
            .load(str(table.path))
            .select(*(backquoted(column.name) for column in plan.columns))
        )
    return reduce(DataFrame.union, parts)


def _handed_over(spark: SparkSession, plan: NativePlan) -> DataFrame:
    names = [column.name for column in plan.columns]
    if not names:
        return spark.range(plan.rows.num_rows).select()
    schema = spark_schema(plan.schema, names)
    # PySpark cannot take arrays of no chunks at all.
    rows = plan.rows if plan.rows.num_rows else plan.rows.schema.empty_table()
    return spark.createDataFrame(rows, schema)
