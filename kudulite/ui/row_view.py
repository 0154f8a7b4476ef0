"""The content of the pages of rows: rows by key, differences of moments, the history of a key.

    /rows?where=…&at=…&after=KEY     a page begins behind the last key of the page before

A page is found by key and not by offset, so it does not skip or repeat rows that others insert or
delete meanwhile, and page 1,000 costs no more than page 1. A key in an address is one text for each
key column: a number, a text, an ISO 8601 moment, or the hexadecimal digits of bytes.

**Threads**: any.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kudulite.client.table import Table
from kudulite.errors import OptionError, UsageError
from kudulite.model.condition import ColumnExpression, Condition
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Column
from kudulite.model.types import ColumnType
from kudulite.model.values import python_rows, value_from_json, value_to_json

ROWS_PER_PAGE = 50
CHANGES_SHOWN_MAX = 200
CELL_CHARACTERS_MAX = 200
# Columns of changes and of histories that are not columns of the table.
_ABOUT = ("_change_type", "_commit_version", "_commit_timestamp", "_commit_writer")


@dataclass(frozen=True)
class RowsPage:
    """Rows of a table at one moment, in the order of their keys.

    `keys` has the texts of each row's key, and `after` those of the last one if more rows follow.
    """

    columns: tuple[Column, ...]
    timestamp: Timestamp
    rows: list[list[Any]]
    keys: list[list[str]]
    after: list[str] | None


def rows_page(
    table: Table, where: str, at: str, after: Sequence[str], count: int = ROWS_PER_PAGE
) -> RowsPage:
    """Return `count` rows that meet a condition, with keys above `after` if it is given.

    Raises UsageError for a condition, a moment or a key that is none, TimestampError,
    CorruptionError, StorageError.
    """
    moment: Any = at or table.current_timestamp()
    schema = table.schema_at(moment)
    conditions: list[Any] = [where] if where else []
    if after:
        conditions += _above(schema.key_columns, key_of_texts(schema.key_columns, after))
    scan = table.scan(where=conditions, at=moment, ordered=True, limit=count + 1)
    found = python_rows(scan.to_arrow())
    is_last = len(found) <= count
    found = found[:count]
    keys = [key_texts(schema.key_columns, row) for row in found]
    return RowsPage(
        tuple(schema.columns),
        scan.timestamp,
        [[*row.values()] for row in found],
        keys,
        None if is_last or not keys else keys[-1],
    )


def _above(columns: Sequence[Column], key: Sequence[Any]) -> Iterator[Condition]:
    """Yield the conditions of keys above a key, in the order of all its columns.

    The first is implied by the other. It has one column, so that rowsets are skipped by it.
    """
    names = [ColumnExpression(column.name) for column in columns]
    yield names[0] >= key[0]
    *rest, last = range(len(names))
    found: Condition = names[last] > key[last]
    for place in reversed(rest):
        found = (names[place] > key[place]) | ((names[place] == key[place]) & found)
    yield found


def key_texts(columns: Sequence[Column], row: dict[str, Any]) -> list[str]:
    """Return the key of a row as one text for each column; `key_of_texts` reads them."""
    return [text_of_value(row[column.name], column.type) for column in columns]


def text_of_value(value: Any, column_type: ColumnType) -> str:
    """Return a value as text that `value_of_text` reads."""
    if column_type.name == "bool":
        return "true" if value else "false"
    return str(value_to_json(value, column_type))


def key_of_texts(columns: Sequence[Column], texts: Sequence[str]) -> tuple[Any, ...]:
    """Return a primary key from one text for each of its columns. Raises OptionError."""
    names = ", ".join(column.name for column in columns)
    if len(texts) != len(columns):
        raise OptionError(
            f"the primary key is ({names}), and {len(texts)} values were given; give one for each"
        )
    return tuple(map(value_of_text, columns, texts))


def value_of_text(column: Column, text: str) -> Any:
    """Return the cell that a text stands for. Raises OptionError that names the column."""
    kind = column.type
    given: Any = text
    try:
        if kind.name == "bool":
            given = {"true": True, "false": False}[text.strip().lower()]
        elif kind.is_timestamp and not text.strip().lstrip("-").isdigit():
            given = datetime.datetime.fromisoformat(text.strip())
        return value_from_json(given, kind, column.name)
    except UsageError as error:
        raise OptionError(f"key column {column.name!r}: {error}") from error
    except (ValueError, ArithmeticError, KeyError) as error:
        raise OptionError(f"key column {column.name!r}: {text!r} is no {kind}") from error


@dataclass(frozen=True)
class ChangedRow:
    """One change of a key: what it was, when, and its cells; `changed` are those that differ."""

    kind: str
    moment: str
    key: list[str]
    cells: list[Any]
    changed: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ChangesPage:
    """The first changes between two moments; `has_more` if there are others."""

    columns: tuple[str, ...]
    start: Timestamp
    end: Timestamp
    rows: list[ChangedRow]
    has_more: bool


def changes_page(table: Table, start: str, end: str) -> ChangesPage:
    """Return the first changes of a table in (start, end]; no text for `end` is now.

    Raises TimestampError for a moment that cannot be read, CorruptionError, StorageError.
    """
    changes = table.changes(start, end or None, images="both")
    # One row more, so that the image before an update is never without the one after it.
    wanted = CHANGES_SHOWN_MAX + 1
    found = list(itertools.islice(_rows_of(changes.to_batches()), wanted + 1))
    has_more = len(found) > wanted
    found = found[:wanted]
    columns = tuple(name for name in changes.schema.names if name not in _ABOUT)
    keys = table.schema_at(changes.end).key_columns
    rows = []
    for before, row in itertools.pairwise([None, *found]):
        assert row is not None
        kind, cells = row["_change_type"], [row[name] for name in columns]
        changed: frozenset[int] = frozenset()
        if kind == "update_postimage" and before is not None:
            changed = _differing(cells, [before[name] for name in columns])
        moment = str(row["_commit_timestamp"])
        rows.append(ChangedRow(kind, moment, key_texts(keys, row), cells, changed))
    if has_more and rows and rows[-1].kind == "update_preimage":
        rows.pop()
    return ChangesPage(columns, changes.start, changes.end, rows, has_more)


def _rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for start in range(0, batch.num_rows, CHANGES_SHOWN_MAX):
            yield from python_rows(batch.slice(start, CHANGES_SHOWN_MAX))


def _differing(cells: Sequence[Any], before: Sequence[Any]) -> frozenset[int]:
    """Return the places of cells that differ from those before; NaN equals itself here."""
    return frozenset(
        place
        for place, (now, then) in enumerate(zip(cells, before, strict=True))
        if not (now == then or (now != now and then != then))
    )


@dataclass(frozen=True)
class HistoryPage:
    """The versions of one row that are kept, the oldest first; `writers` who wrote each."""

    columns: tuple[str, ...]
    rows: list[ChangedRow]
    writers: list[str]


def history_page(table: Table, texts: Sequence[str]) -> HistoryPage:
    """Return the history of the row whose key the texts are. Raises OptionError."""
    key_columns = table.schema.key_columns
    key = key_of_texts(key_columns, texts)
    found = table.history(key)
    columns = tuple(name for name in found.column_names if name not in _ABOUT)
    rows, writers = [], []
    before: list[Any] | None = None
    for row in python_rows(found):
        cells = [row[name] for name in columns]
        changed: frozenset[int] = frozenset()
        if before is not None:
            changed = _differing(cells, before)
        moment = row["_commit_timestamp"]
        text = "before the past that is kept" if moment is None else str(moment)
        rows.append(ChangedRow(row["_change_type"] or "row", text, list(texts), cells, changed))
        writers.append(row["_commit_writer"] or "")
        before = cells
    return HistoryPage(columns, rows, writers)
