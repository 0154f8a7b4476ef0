"""The eight write operations, their outcomes, and the specification of a whole write.

`OUTCOMES` alone defines the effect of an operation when its key is absent or present. Batches index
it as an array, single rows one at a time (both in row_effects.py). `WriteSpec` holds the options
that all rows of a write share. `raise_row_error` reports the rows that a table refuses: their
count, the reason, and the first few keys. `raise_changed_keys` does so for the rows of a computed
write that changed after they were read.

Rows that set different columns have a mask beside each column that some of them leave: a bool
column, true where the row sets the cell. `mask_of` gives its name.

**Invariants**: (1) the numbers of `Operation` are on disk, in staged files; (2) every operation
has an outcome for an absent and for a present key.

**Threads**: any; everything here is immutable.

**Source**: Kudu common/row_operations.cc; docs/schema_design.adoc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import IntEnum
from functools import reduce
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.errors import (
    ColumnNotFoundError,
    ConflictError,
    OptionError,
    RowError,
    SchemaError,
)
from kudulite.model.encoded_key import decode_keys
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.key_array import KeyArray
from kudulite.model.schema import Schema
from kudulite.model.types import value_text
from kudulite.rowset.rowset import cell_value

KEYS_SHOWN_MAX = 5


class Operation(IntEnum):
    """A write operation; the numbers stand in staged files: do not renumber."""

    INSERT = 0
    INSERT_IGNORE = 1
    UPSERT = 2
    UPSERT_IGNORE = 3
    UPDATE = 4
    UPDATE_IGNORE = 5
    DELETE = 6
    DELETE_IGNORE = 7

    @property
    def label(self) -> str:
        """The name in user code."""
        return self.name.lower()

    @property
    def is_insert(self) -> bool:
        """Whether the operation only creates rows."""
        return self <= Operation.INSERT_IGNORE

    @property
    def is_upsert(self) -> bool:
        """Whether the operation creates a row or changes the one that is there."""
        return Operation.UPSERT <= self <= Operation.UPSERT_IGNORE

    @property
    def is_delete(self) -> bool:
        """Whether the operation takes key columns only."""
        return self >= Operation.DELETE

    @property
    def is_update(self) -> bool:
        """Whether the operation changes existing rows and never creates one."""
        return Operation.UPDATE <= self < Operation.DELETE


# The operations of a MERGE: its rows are known to be there or not, and two may delete one row.
MERGE_OPERATIONS = (
    Operation.INSERT,
    Operation.UPDATE,
    Operation.UPDATE_IGNORE,
    Operation.DELETE_IGNORE,
)

# The outcomes that a write counts, in the order of WriteCounts' fields.
INSERTED, UPDATED, DELETED, IGNORED = range(4)
# One of the four above, or the RowError reason of a refusal.
Outcome = int | str
_PRESENT, _NOT_FOUND = RowError.REASON_ALREADY_PRESENT, RowError.REASON_NOT_FOUND
# OUTCOMES[operation][is_live]: INSERTED is a new row, UPDATED sets the given columns.
OUTCOMES: tuple[tuple[Outcome, Outcome], ...] = (
    # key absent, key present
    (INSERTED, _PRESENT),  # INSERT
    (INSERTED, IGNORED),  # INSERT_IGNORE
    (INSERTED, UPDATED),  # UPSERT
    (INSERTED, UPDATED),  # UPSERT_IGNORE
    (_NOT_FOUND, UPDATED),  # UPDATE
    (IGNORED, UPDATED),  # UPDATE_IGNORE
    (_NOT_FOUND, DELETED),  # DELETE
    (IGNORED, DELETED),  # DELETE_IGNORE
)


OPERATION_NAMES = tuple(operation.label for operation in Operation)
_LETTERS = {"i": Operation.INSERT, "u": Operation.UPDATE, "d": Operation.DELETE}
# Types of changes that are no names of operations.
UPDATE_PREIMAGE, UPDATE_POSTIMAGE = "update_preimage", "update_postimage"

_MASK_PREFIX = "\0set "  # no column of a table can bear a NUL


def mask_of(column: str) -> str:
    """Return the name of the column that has, for each row, whether it sets `column`."""
    return _MASK_PREFIX + column


def parse_operation(text: str) -> Operation:
    """Return the operation of a name. Raises OptionError listing the eight."""
    name = str(text).strip().lower().replace("-", "_")
    if name in OPERATION_NAMES:
        return Operation[name.upper()]
    raise OptionError(f"unknown operation {text!r}; known: {', '.join(OPERATION_NAMES)}")


def parse_change_operation(text: str) -> Operation:
    """Return the operation of a cell of an operation column: a letter I, U, D or a name."""
    name = str(text).strip().lower()
    if name == UPDATE_POSTIMAGE:
        return Operation.UPDATE
    letter = _LETTERS.get(name)
    return letter if letter is not None else parse_operation(text)


def operation_codes(texts: Sequence[str], what: str, is_merge: bool) -> list[int]:
    """Return the numbers of the operations that an operation column, `what`, has.

    Raises OptionError for an unknown one, and for one that a MERGE does not have.
    """
    try:
        codes = [parse_change_operation(text) for text in texts]
    except OptionError as error:
        raise OptionError(
            f"{what}: {error}, I, U, D, {UPDATE_POSTIMAGE}, {UPDATE_PREIMAGE}"
        ) from error
    known = ", ".join(operation.label for operation in MERGE_OPERATIONS)
    for operation in codes:
        if is_merge and operation not in MERGE_OPERATIONS:
            raise OptionError(
                f"{what}: a MERGE has no operation {operation.label!r}; known: {known}"
            )
    return list(map(int, codes))


@dataclass(frozen=True)
class WriteSpec:
    """The operation and options of one write, the same for all its rows and tasks; picklable.

    `operation` is None for a mixed batch, which has an operation per row. `value_columns` are the
    non-key columns that the write provides, in schema order. `partial_columns` are those of them
    that have a mask, because not every row sets them. With `ignore_null`, a null cell keeps the
    stored value. With `ordering_column`, the highest ordering value of a key wins.
    `hides_nulls`: in a new row, a null under `ignore_null` becomes a default that is not null.
    `immutable_columns` are those of `value_columns` that no row that exists may change. A write
    that `brings_back` rows takes them as they were: it sets immutable cells and ids of new rows.
    `read_at` is the HybridTime of the rows that the write was computed from: no key of the write
    may have changed since. None allows any change. A write that `is_merge` is computed. If it is
    mixed, it has only `MERGE_OPERATIONS`, and inserts no key that was there when its rows were
    read. Otherwise its rows are those of a source, of which only one may change a row.
    """

    operation: Operation | None
    value_columns: tuple[str, ...]
    ignore_null: bool = False
    ordering_column: str | None = None
    is_overwrite: bool = False
    hides_nulls: bool = False
    read_at: int | None = None
    immutable_columns: tuple[str, ...] = ()
    brings_back: bool = False
    is_merge: bool = False
    partial_columns: tuple[str, ...] = ()
    skips_unchanged: bool = False

    @property
    def leaves_equal_cells(self) -> bool:
        """Whether cells that are equal to those of the row are not written.

        No other writer may change the rows of a computed write until its commit. Rows of a write
        that `skips_unchanged` are resolved again if another writer changes them.
        """
        is_plain = not (self.ignore_null or self.is_overwrite or self.ordering_column)
        return self.skips_unchanged or (self.read_at is not None and is_plain)

    @property
    def ends_rows(self) -> bool:
        """Whether this is an overwrite that ends all rows of before and inserts its own."""
        return self.is_overwrite and not self.skips_unchanged

    @property
    def replaces_rows(self) -> bool:
        """Whether this is an overwrite that changes rows to its own and deletes all others."""
        return self.is_overwrite and self.skips_unchanged

    @property
    def ignores_absent_rows(self) -> bool:
        """Whether this is a MERGE whose only operation leaves absent rows as they are."""
        ignoring = (Operation.UPDATE_IGNORE, Operation.DELETE_IGNORE)
        return self.is_merge and self.operation in ignoring

    @staticmethod
    def build(
        schema: Schema,
        names: Sequence[str],
        *,
        table: str,
        operation: Operation | None,
        ignore_null: bool = False,
        ordering_column: str | None = None,
        is_overwrite: bool = False,
        read_at: int | None = None,
    ) -> WriteSpec:
        """Check the columns `names` that a write provides, with masks, against the schema.

        Raises SchemaError for a missing key column, an unknown or repeated column, or an update
        that would change nothing.
        """
        what = f"table {table!r}: {operation.label if operation is not None else 'mixed batch'}"
        masks = {name for name in names if name.startswith(_MASK_PREFIX)}
        names = [name for name in names if name not in masks]
        repeated = sorted({name for name in names if list(names).count(name) > 1})
        if repeated:
            raise SchemaError(f"{what}: column {repeated[0]!r} is given twice")
        missing = [name for name in schema.key_names if name not in names]
        if missing == [schema.auto_incrementing]:
            _check_may_number(what, operation, is_overwrite)
        elif missing:
            raise SchemaError(
                f"{what} without key column {missing[0]!r}; the primary key is"
                f" ({', '.join(schema.key_names)}), given are: {', '.join(names) or 'no columns'}"
            )
        if operation is not None and operation.is_delete:
            if ordering_column is None:
                return WriteSpec(operation, (), read_at=read_at)
            # A delete ignores all other columns.
            names = [name for name in names if name in (*schema.key_names, ordering_column)]
            ignore_null = False
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            raise ColumnNotFoundError(
                f"{what}: the table has no column {unknown[0]!r}; its columns are"
                f" {', '.join(schema.names)}"
            )
        values = _written_columns(schema, names, operation, what)
        if ordering_column is not None and ordering_column not in values:
            raise OptionError(
                f"{what}: ordering column {ordering_column!r} must be a non-key column of the table"
                f" that the batch provides; those are: {', '.join(values) or 'none'}"
            )
        if ordering_column is not None and schema.column(ordering_column).type.is_array:
            raise OptionError(
                f"{what}: ordering column {ordering_column!r} is"
                f" {schema.column(ordering_column).type}, which has no order"
            )
        hides_nulls = ignore_null and any(
            schema.column(name).write_default is not None for name in values
        )
        immutable = tuple(name for name in values if not schema.column(name).mutable)
        partial = tuple(name for name in values if mask_of(name) in masks)
        rules = (ignore_null, ordering_column, is_overwrite, hides_nulls, read_at, immutable)
        return WriteSpec(operation, values, *rules, partial_columns=partial)


def _check_may_number(what: str, operation: Operation | None, is_overwrite: bool) -> None:
    """Raise SchemaError for an operation whose rows need their `auto_incrementing_id`."""
    if operation is not None and not operation.is_insert and not is_overwrite:
        raise SchemaError(
            f"{what}: the key is not unique, so auto_incrementing_id should be set for"
            f" {operation.label}: read the rows with it; to add rows, use insert"
        )


def _written_columns(
    schema: Schema, names: Sequence[str], operation: Operation | None, what: str
) -> tuple[str, ...]:
    """Return the non-key columns of `names` that a write sets, in schema order.

    Raises SchemaError for an update that would set none.
    """
    given = [column for column in schema.value_columns if column.name in names]
    if operation is Operation.UPDATE_IGNORE:
        given = [column for column in given if column.mutable]
    if operation is not None and operation.is_update and not given:
        known = ", ".join(column.name for column in schema.value_columns if column.mutable)
        raise SchemaError(
            f"{what} without a column to set: no fields updated; give at least one of"
            f" {known or '(the table has none)'}"
        )
    return tuple(column.name for column in given)


def raise_row_error(
    table: str, what: str, reason: str, rows: pa.Table, schema: Schema, row_numbers: np.ndarray
) -> NoReturn:
    """Raise a RowError for `row_numbers` of the batch `rows`; `what` names the operation."""
    numbers = np.sort(row_numbers)
    given = [name for name in schema.key_names if name in rows.column_names]
    shown = rows.select(given).take(pa.array(numbers[:KEYS_SHOWN_MAX]))
    keys = _keys(shown.columns, schema)
    is_own = reason == RowError.REASON_ALREADY_PRESENT and _has_before(rows.select(given), numbers)
    twice = ", by an earlier row of the batch" if is_own else ""
    raise RowError(
        f"table {table!r}: {what}: {_rows(len(numbers))} refused: {reason}{twice};"
        f" {_listed(keys, len(numbers), schema)}; nothing was written",
        reason=reason,
        row_count=len(numbers),
        keys=keys,
    )


def _has_before(keys: pa.Table, row_numbers: np.ndarray) -> bool:
    """Whether the first of some rows has a key that an earlier row of the batch has, too."""
    number = int(row_numbers[0])
    equal = [pc.equal(column.slice(0, number), column[number]) for column in keys.columns]
    return bool(equal) and bool(pc.any(reduce(pc.and_, equal)).as_py())


def raise_changed_keys(table: str, schema: Schema, keys: KeyArray, read_at: int) -> NoReturn:
    """Raise the ConflictError of a write whose rows, those of `keys`, changed after `read_at`."""
    first = keys.slice(0, KEYS_SHOWN_MAX)
    shown = _keys(decode_keys(first, schema.key_types), schema)
    raise ConflictError(
        f"table {table!r}: {_rows(len(keys))} of the write changed after they were read at"
        f" {format_timestamp(read_at)}: {_listed(shown, len(keys), schema)}; nothing was written:"
        " read them again and write again"
    )


def _keys(
    columns: Sequence[pa.Array | pa.ChunkedArray], schema: Schema
) -> tuple[tuple[object, ...], ...]:
    """Return primary keys as tuples; a moment outside of Python's years is its microseconds."""
    pairs = zip(columns, schema.key_columns, strict=False)  # ids are given at the end
    cells = [[cell_value(scalar, column) for scalar in array] for array, column in pairs]
    return tuple(zip(*cells, strict=True))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _listed(keys: tuple[tuple[object, ...], ...], count: int, schema: Schema) -> str:
    """Return the first keys of `count` rows as text."""
    more = ", …" if count > len(keys) else ""
    names = schema.key_names[: len(keys[0])] if keys else schema.key_names
    return f"({', '.join(names)}) = {', '.join(map(_show, keys))}{more}"


def _show(key: tuple[object, ...]) -> str:
    cells = [_show_cell(cell) for cell in key]
    return cells[0] if len(cells) == 1 else f"({', '.join(cells)})"


def _show_cell(cell: object) -> str:
    """Return a key cell as text: dates and numbers plain, strings in quotes."""
    if isinstance(cell, date):  # includes datetime
        return cell.isoformat()
    return str(cell) if isinstance(cell, Decimal) else value_text(cell)
