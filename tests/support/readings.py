"""All ways of reading a table, compared with each other."""

from __future__ import annotations

import pickle
from typing import Any

from native_rows import LIMITS, native_readings

from kudulite.client.table import Table

VALUES_MAX = 4  # of each column, for predicates


def every_reading(table: Table, at: Any = None) -> list[dict]:
    """The rows as dicts in key order, after all ways of reading gave the same; the table is
    checked."""
    names = table.schema.key_names

    def in_key_order(rows: list[dict]) -> list[dict]:
        return sorted(rows, key=lambda row: tuple(row[name] for name in names))

    rows = in_key_order(table.scan(at=at).to_pylist())
    keys = [tuple(row[name] for name in names) for row in rows]
    assert table.scan(at=at, ordered=True).to_pylist() == rows
    assert table.scan(at=at).count() == len(rows)
    assert [table.get(key, at=at) for key in keys] == rows
    assert table.get_many(keys, at=at).to_pylist() == rows
    assert in_key_order(rows_of_tokens(table.scan_tokens(at=at, split_size_bytes=1))) == rows
    for found in native_readings(table, at, LIMITS[::2]):
        assert in_key_order(found) == rows
    scanner = table.scanner()
    if at is not None:
        scanner.set_snapshot(at)
    assert sorted(scanner.open().read_all_tuples(), key=str) == sorted(
        (tuple(row.values()) for row in rows), key=str
    )
    for column in table.schema.columns:
        _compare_predicates(table, column.name, rows, at)
    assert table.check().raise_if_bad()
    return rows


def rows_of_tokens(tokens: list) -> list[dict]:
    """The rows of tokens that came from another process."""
    arrived = pickle.loads(pickle.dumps(tokens))
    return [row for token in arrived for batch in token.open() for row in batch.to_pylist()]


def _compare_predicates(table: Table, name: str, rows: list[dict], at: Any) -> None:
    is_array = table.schema.column(name).type.is_array
    values = [None] if is_array else list({row[name] for row in rows})
    for value in values[:VALUES_MAX]:
        tests = [(table[name].is_null(), lambda found: found is None)]
        if is_array:
            tests.append((table[name].is_not_null(), lambda found: found is not None))
        if value is not None:
            tests = [
                (table[name] == value, lambda found, v=value: found == v),
                (table[name] >= value, lambda found, v=value: found is not None and found >= v),
                (table[name] < value, lambda found, v=value: found is not None and found < v),
            ]
        for predicate, holds in tests:
            expected = [row for row in rows if holds(row[name])]
            assert table.scan(where=predicate, at=at, ordered=True).to_pylist() == expected
            assert table.scan(where=predicate, at=at).count() == len(expected)
            assert len(rows_of_tokens(table.scan_tokens(where=predicate, at=at))) == len(expected)
