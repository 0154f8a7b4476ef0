"""Write operations and sessions of kudu-python's programs.

    op = table.new_insert({"a": 1})         or kudu.Insert(table, {"a": 1}), or nothing, and then
    op["b"] = "text"                        cells by name or number, converted by `cell_of`
    session.apply(op)
    session.flush()
    session.get_write_op_metrics()          how many operations of each kind were applied

**Threads**: as the engine's; `_report_lock` protects the metrics.

**Source**: Kudu python/kudu/client.pyx; tserver.proto, ResourceMetricsPB, for the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from kudulite.client import mutation_buffer, row_operations
from kudulite.client import session as engine
from kudulite.kudu.cells import cell_of
from kudulite.kudu.errors import KuduInvalidArgument, in_kudu_terms
from kudulite.model.encoded_key import encode_key
from kudulite.tablet.operation import DELETED, IGNORED, INSERTED, UPDATED, Operation
from kudulite.tablet.row_effects import RowWriteResult

FLUSH_AUTO_SYNC, FLUSH_AUTO_BACKGROUND, FLUSH_MANUAL = 0, 1, 2


@dataclass(frozen=True)
class Limits:
    """Limits that are flags of Kudu's servers, by their names; `kudu.connect` takes other values.

    They are limits of a client, not of the engine: other writers of the same tables have none.
    """

    max_num_columns: int = 300
    max_cell_size_bytes: int = 64 << 10
    max_encoded_key_size_bytes: int = 16 << 10
    array_cell_max_elem_num: int = 1024

    def check_columns(self, count: int) -> None:
        """Refuse a table of too many columns."""
        if count > self.max_num_columns:
            raise KuduInvalidArgument(
                f"number of columns {count} is greater than the permitted maximum"
                f" {self.max_num_columns}; kudu.connect(…, max_num_columns=…) raises it"
            )

    def check_row(self, row: row_operations.WriteOperation) -> None:
        """Refuse a cell that is too large, and a key that is too large for a new row."""
        schema, values = row.layout.schema, row.values
        for column in schema.columns:
            value = values.get(column.name)
            if value is None:
                continue
            if column.type.is_array and len(value) > self.array_cell_max_elem_num:
                raise KuduInvalidArgument(
                    f"array too large for column '{column.name}' ({len(value)} elements, maximum is"
                    f" {self.array_cell_max_elem_num} elements); kudu.connect(…,"
                    " array_cell_max_elem_num=…) raises it"
                )
            if not column.type.is_bytes:
                continue
            size = len(value.encode() if isinstance(value, str) else value)
            if size > self.max_cell_size_bytes:
                raise KuduInvalidArgument(
                    f"value too large for column '{column.name}' ({size} bytes, maximum is"
                    f" {self.max_cell_size_bytes} bytes); kudu.connect(…, max_cell_size_bytes=…)"
                    " raises it"
                )
        if row.operation >= Operation.UPDATE:
            return
        key = [values.get(name, 0) for name in schema.key_names]  # an insert has no id yet
        size = len(encode_key(key, schema.key_types))
        if size > self.max_encoded_key_size_bytes:
            raise KuduInvalidArgument(
                f"encoded key too large ({size} bytes, maximum is"
                f" {self.max_encoded_key_size_bytes} bytes); kudu.connect(…,"
                " max_encoded_key_size_bytes=…) raises it"
            )


DEFAULT_LIMITS = Limits()
KindOfNumber = TypeVar("KindOfNumber", int, float)


class WrittenTable(Protocol):
    """The part of a table that its operations need; client.py has the class."""

    limits: Limits

    @property
    def _row_target(self) -> row_operations.RowTarget: ...


class _Operation(row_operations.WriteOperation):
    """A write operation whose cells are given as in kudu-python."""

    __slots__ = ("_limits",)

    kind: ClassVar[Operation]

    def __init__(self, table: WrittenTable, record: Any = None) -> None:
        super().__init__(table._row_target, self.kind)
        self._limits = table.limits
        if record:
            for key, value in _cells(record):
                self[key] = value

    def __setitem__(self, key: str | int, value: Any) -> None:
        """Set a cell by the name or number of its column.

        Raises KeyError, IndexError, TypeError, OverflowError, KuduInvalidArgument.
        """
        layout = self.layout
        if key in layout.columns:
            value = cell_of(layout.schema.column(layout.columns[key][0]), value)
        super().__setitem__(key, value)

    def complete(self) -> int:
        """Check it as a whole; return its size in a buffer. Raises KuduInvalidArgument."""
        size, limits = super().complete(), self._limits
        # An encoded key has at most two bytes for each byte of its cells, and each element of an
        # array takes 16 bytes.
        bytes_max = min(limits.max_cell_size_bytes, limits.max_encoded_key_size_bytes) // 2
        if size > min(bytes_max, 16 * limits.array_cell_max_elem_num):
            limits.check_row(self)
        return size


def _cells(record: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(record, Mapping):
        return record.items()
    if isinstance(record, tuple | list):
        return enumerate(record)
    raise TypeError(f"Invalid record type <{type(record).__name__}>: give a tuple, list or dict")


@in_kudu_terms
class Insert(_Operation):
    """A new row."""

    __slots__ = ()
    kind = Operation.INSERT


@in_kudu_terms
class InsertIgnore(_Operation):
    """A new row; ignored if the key is there."""

    __slots__ = ()
    kind = Operation.INSERT_IGNORE


@in_kudu_terms
class Upsert(_Operation):
    """A new row, or new values for the columns that are set."""

    __slots__ = ()
    kind = Operation.UPSERT


@in_kudu_terms
class UpsertIgnore(_Operation):
    """An Upsert that leaves immutable columns of a row that is there as they are."""

    __slots__ = ()
    kind = Operation.UPSERT_IGNORE


@in_kudu_terms
class Update(_Operation):
    """New values for the columns that are set."""

    __slots__ = ()
    kind = Operation.UPDATE


@in_kudu_terms
class UpdateIgnore(_Operation):
    """An Update that is ignored if the key is absent."""

    __slots__ = ()
    kind = Operation.UPDATE_IGNORE


@in_kudu_terms
class Delete(_Operation):
    """No row of this key any more."""

    __slots__ = ()
    kind = Operation.DELETE


@in_kudu_terms
class DeleteIgnore(_Operation):
    """A Delete that is ignored if the key is absent."""

    __slots__ = ()
    kind = Operation.DELETE_IGNORE


# The class of each operation.
OPERATIONS: dict[Operation, type[_Operation]] = {
    made.kind: made
    for made in (
        *(Insert, InsertIgnore, Upsert, UpsertIgnore),
        *(Update, UpdateIgnore, Delete, DeleteIgnore),
    )
}


class KuduError(mutation_buffer.PendingError):
    """An operation of a session that was not applied, and why."""

    def __repr__(self) -> str:
        return f"KuduError('{self.status}')"


# The metric that counts the successes of an operation, and the one of what it ignores.
_METRICS = {
    Operation.INSERT: ("successful_inserts", ""),
    Operation.INSERT_IGNORE: ("successful_inserts", "insert_ignore_errors"),
    Operation.UPSERT: ("successful_upserts", ""),
    Operation.UPSERT_IGNORE: ("successful_upserts", "upsert_ignore_errors"),
    Operation.UPDATE: ("successful_updates", ""),
    Operation.UPDATE_IGNORE: ("successful_updates", "update_ignore_errors"),
    Operation.DELETE: ("successful_deletes", ""),
    Operation.DELETE_IGNORE: ("successful_deletes", "delete_ignore_errors"),
}


@in_kudu_terms
class Session(engine.Session):
    """Buffered writing of single rows; made by `Client.new_session`."""

    def __init__(self, *given: Any, **options: Any) -> None:
        names = {name for pair in _METRICS.values() for name in pair if name}
        self._metrics = dict.fromkeys(sorted(names), 0)
        super().__init__(*given, **options)

    def set_flush_mode(self, flush_mode: str | int = "manual") -> None:
        """Set when the session writes, by name or FLUSH_ constant."""
        if isinstance(flush_mode, str) and flush_mode.lower() not in engine.FLUSH_MODES:
            raise KuduInvalidArgument(f"Invalid flush mode: {flush_mode}")
        super().set_flush_mode(flush_mode)

    def set_mutation_buffer_space(self, size_bytes: int) -> None:
        """Set how many bytes of operations may wait. Raises OverflowError for a negative size."""
        super().set_mutation_buffer_space(_unsigned(size_bytes, "size_t"))

    def set_mutation_buffer_flush_interval(self, millis: float) -> None:
        """Set how long an operation may wait in the background. Raises OverflowError."""
        super().set_mutation_buffer_flush_interval(_unsigned(millis, "unsigned int"))

    def set_mutation_buffer_max_num(self, max_num: int) -> None:
        """Set how many buffers the session has, 0 for no limit. Raises OverflowError."""
        super().set_mutation_buffer_max_num(_unsigned(max_num, "unsigned int"))

    def set_mutation_buffer_flush_watermark(self, watermark_pct: float) -> None:
        """Set which part of the space, 0 to 1, makes a background session write."""
        if not 0 <= watermark_pct <= 1:
            percent = round(watermark_pct * 100)
            raise KuduInvalidArgument(f"{percent}: watermark must be between 0 and 100 inclusive")
        super().set_mutation_buffer_flush_watermark(watermark_pct)

    def get_pending_errors(self) -> tuple[list[mutation_buffer.PendingError], bool]:
        """Return the errors since the last call, as KuduErrors, and whether there were more."""
        errors, has_overflowed = super().get_pending_errors()
        return [KuduError(e.operation, e.reason, e.error) for e in errors], has_overflowed

    def get_write_op_metrics(self) -> dict[str, int]:
        """Return how many operations of each kind were applied, and how many were ignored."""
        with self._report_lock:
            return dict(self._metrics)

    def _note_written(
        self, operations: Sequence[row_operations.WriteOperation], result: RowWriteResult
    ) -> None:
        with self._report_lock:
            for positions, outcomes in result.outcomes:
                for position, outcome in zip(positions, outcomes, strict=True):
                    operation = operations[position]
                    success, ignored = _METRICS[operation.operation]
                    if outcome in (INSERTED, UPDATED, DELETED):
                        self._metrics[success] += 1
                    if outcome == IGNORED or (outcome == UPDATED and _leaves_cells(operation)):
                        self._metrics[ignored] += 1


def _leaves_cells(operation: row_operations.WriteOperation) -> bool:
    """Whether a row that was there kept immutable cells that the operation would set."""
    columns = operation.layout.schema.value_columns
    return any(not column.mutable and column.name in operation.values for column in columns)


def _unsigned(value: KindOfNumber, c_type: str) -> KindOfNumber:
    if isinstance(value, int) and value < 0:
        raise OverflowError(f"can't convert negative value to {c_type}")
    return value
