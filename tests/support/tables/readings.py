"""All ways of reading a table, compared with each other."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kudulite import Column, ColumnExpression, NativeFile, NativeLimits, NativePlan
from kudulite.client.table import Table
from kudulite.kudu.scanner import Scanner
from tests.support.tiers import by_tier

# All the ways a plan may take: rows handed over, tokens for changed rows, tokens for whole rowsets.
LIMITS = (
    NativeLimits(excluded_fraction_max=1),
    NativeLimits(),
    NativeLimits(excluded_fraction_max=1, handed_bytes_max=0),
    NativeLimits(excluded_rows_max=0, handed_bytes_max=0, memory_rows_max=0),
)


def rows_of_plan(plan: NativePlan) -> pa.Table:
    """All rows of a plan; `where` is not applied to the files."""
    schema = pa.schema([(column.name, column.type.arrow) for column in plan.columns])
    parts = [rows_of_file(file).cast(schema) for file in plan.files]
    parts.append(plan.rows.cast(schema))
    for token in pickle.loads(pickle.dumps(plan.tokens)):
        parts += [pa.Table.from_batches([batch]).cast(schema) for batch in token.open()]
    return pa.concat_tables(parts)


def rows_of_file(file: NativeFile) -> pa.Table:
    """The rows of one file but for the excluded, columns named as the plan has them."""
    stored = pq.ParquetFile(file.path).read()
    assert stored.num_rows == file.row_count
    arrays, names = [], []
    for item in file.columns:
        column_type = item.column.type.arrow
        if item.stored_name is None:
            values = pa.repeat(pa.scalar(item.default, column_type), file.row_count)
        else:
            values = stored.column(item.stored_name).cast(column_type)
            assert stored.schema.field(item.stored_name).type == item.stored_type
        if item.column in file.overlaid:
            positions, new = file.changed_cells(item.column)
            assert new.type == column_type and not np.isin(positions, file.excluded).any()
            source = np.arange(file.row_count)
            source[positions] = file.row_count + np.arange(len(positions))
            old = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
            values = pa.chunked_array([*old, new]).take(source)
        arrays.append(values)
        names.append(item.column.name)
    keep = np.ones(file.row_count, dtype=bool)
    keep[file.excluded] = False
    return pa.table(arrays, names=names).filter(pa.array(keep))


def native_readings(
    table: Table, at: Any = None, limits: Sequence[NativeLimits] = LIMITS
) -> list[list[dict]]:
    """The rows of a table by native plans of all kinds of limits, each in any order."""
    plans = [
        table.native_plan(at=at, limits=limit, with_overlays=with_overlays)
        for limit in limits
        for with_overlays in (False, True)
    ]
    if limits is LIMITS:
        plans.append(table.native_plan(at=at, is_readable=lambda file: False))
    return [rows_of_plan(plan).to_pylist() for plan in plans]


# The quick tier compares a sample: some keys, two ways of a plan, and one predicate of each column,
# another one at each version of the table. So tests that compare all readings are in both tiers.
KEYS_MAX = by_tier(4, 1000)
VALUES_MAX = by_tier(1, 4)
PLAN_WAYS = by_tier(1, 2)
PREDICATES_MAX = by_tier(1, 1000)


def every_reading(table: Table, at: Any = None) -> list[dict]:
    """The rows as dicts in key order, after all ways of reading gave the same; the table is
    checked."""
    schema = table.schema if at is None else table.schema_at(at)
    names = schema.key_names

    def in_key_order(rows: list[dict]) -> list[dict]:
        return sorted(rows, key=lambda row: tuple(row[name] for name in names))

    rows = in_key_order(table.scan(at=at).to_pylist())
    some = rows[:: 1 + len(rows) // KEYS_MAX]
    keys = [tuple(row[name] for name in names) for row in some]
    assert table.scan(at=at, ordered=True).to_pylist() == rows
    assert table.scan(at=at).count() == len(rows)
    assert [table.get(key, at=at) for key in keys] == some
    assert table.get_many(keys, at=at).to_pylist() == some
    assert in_key_order(rows_of_tokens(table.scan_tokens(at=at, split_size_bytes=1))) == rows
    for found in native_readings(table, at, LIMITS[: 2 * PLAN_WAYS : 2]):
        assert in_key_order(found) == rows
    scanner = Scanner(table)
    if at is not None:
        scanner.set_snapshot(at)
    assert sorted(scanner.open().read_all_tuples(), key=str) == sorted(
        (tuple(row.values()) for row in rows), key=str
    )
    for column in schema.columns:
        _compare_predicates(table, column, rows, at)
    assert table.check().raise_if_bad()
    return rows


def rows_of_tokens(tokens: list) -> list[dict]:
    """The rows of tokens that came from another process."""
    arrived = pickle.loads(pickle.dumps(tokens))
    return [row for token in arrived for batch in token.open() for row in batch.to_pylist()]


def _compare_predicates(table: Table, column: Column, rows: list[dict], at: Any) -> None:
    name, is_array, compared = column.name, column.type.is_array, ColumnExpression(column.name)
    values = [] if is_array else list({row[name] for row in rows} - {None})
    tests = [(compared.is_null(), lambda found: found is None)]
    if is_array:
        tests.append((compared.is_not_null(), lambda found: found is not None))
    for value in values[:VALUES_MAX]:
        tests += [
            (compared == value, lambda found, v=value: found == v),
            (compared >= value, lambda found, v=value: found is not None and found >= v),
            (compared < value, lambda found, v=value: found is not None and found < v),
        ]
    first = (column.id + table.version) % len(tests)
    for place, (predicate, holds) in enumerate([*tests[first:], *tests[:first]][:PREDICATES_MAX]):
        expected = [row for row in rows if holds(row[name])]
        assert table.scan(where=predicate, at=at, ordered=True).to_pylist() == expected
        assert table.scan(where=predicate, at=at).count() == len(expected)
        if place == 0:  # tokens filter as scans do
            tokens = table.scan_tokens(where=predicate, at=at)
            assert len(rows_of_tokens(tokens)) == len(expected)
