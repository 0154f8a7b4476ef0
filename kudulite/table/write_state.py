"""WriteState: what all tasks of a bulk write share, and what each of them hands to the commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError, UsageError
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.schema import Schema
from kudulite.storage.storage import FileRef
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import Operation, WriteSpec
from kudulite.tablet.staged_tablet import StagedTablet

STAGED_OPERATION_NAME = "\0operation"  # no column of a table can bear a NUL


def columns_of(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of rows by name; names are distinct."""
    return dict(zip(rows.column_names, rows.columns, strict=True))


@dataclass(frozen=True)
class WriteState:
    """Parameters shared by all tasks and the commit of one write; picklable.

    `base_version` is the version that the write began on, whose file ends with `base_crc32`. Its
    schema is that of all rows. `operation_column` names the batch's column of operations in a mixed
    write. The `label`, if there is one, names the write in the list of versions, beside its
    `message`.
    """

    table_id: str
    base_version: int
    write_id: str
    spec: WriteSpec
    operation_column: str | None = None
    application_id: str | None = None
    application_version: int | None = None
    owner: str | None = None
    base_crc32: int | None = None
    label: str = ""
    message: str = ""

    def needs_rows(self, schema: Schema) -> bool:
        """Whether tasks may resolve rows to something else where their version lacks some rows.

        A commit takes back what they made of a row that was inserted or deleted since, but not that
        they have ignored or refused one, or left out a cell that was equal. An UPSERT of all
        columns that a new row needs does neither.
        """
        spec = self.spec
        if self.is_resolved_at_commit:
            return False
        required = {
            column.name
            for column in schema.value_columns
            if not column.nullable and column.write_default is None
        }
        return (
            spec.operation is not Operation.UPSERT
            or spec.leaves_equal_cells
            or bool(spec.immutable_columns)
            or not required.issubset(spec.value_columns)
        )

    def labelled(self, label: str) -> WriteState:
        """Return the write under another name in the list of versions."""
        return replace(self, label=label)

    def restoring(self) -> WriteState:
        """Return the write as one that brings rows back as they were: it sets all their cells."""
        return replace(self, spec=replace(self.spec, immutable_columns=(), brings_back=True))

    def merging(self) -> WriteState:
        """Return the write, which has a `read_at`, as that of a MERGE."""
        assert self.spec.read_at is not None
        return replace(self, spec=replace(self.spec, is_merge=True))

    @property
    def operation_name(self) -> str:
        """The name in the list of versions."""
        spec = self.spec
        if self.label:
            return self.label
        if spec.is_overwrite:
            return "overwrite"
        return "apply" if spec.operation is None else spec.operation.label

    @property
    def is_resolved_at_commit(self) -> bool:
        """Whether operations are resolved at commit; tasks then only split rows by tablet.

        Needed when a staged row cannot be undone from its result: mixed writes but that of a MERGE,
        ordered writes, rows that set different columns, nulls that may become defaults, nulls that
        leave a cell beside equal cells that are left out, and immutable cells that an UPSERT_IGNORE
        leaves.
        """
        spec = self.spec
        leaves_cells = spec.operation is Operation.UPSERT_IGNORE and bool(spec.immutable_columns)
        is_ordered = spec.ordering_column is not None
        is_mixed = spec.operation is None and not spec.is_merge
        is_partial = bool(spec.partial_columns)
        hides_nulls = spec.hides_nulls or (spec.ignore_null and spec.skips_unchanged)
        return is_mixed or is_ordered or is_partial or hides_nulls or leaves_cells


@dataclass(frozen=True)
class StagedOperations:
    """Rows of one tablet in a mixed write, not resolved yet, in an Arrow IPC file of its folder."""

    tablet_id: str
    ref: FileRef


@dataclass(frozen=True)
class StagedTask:
    """The staged parts of one attempt of one task of a write; small and picklable.

    A task of few rows has no parts and hands over the `rows` themselves, checked, with the number
    of an operation each. Parts are valid for the version `base_version`, whose file ends with
    `base_crc32`; that of the write if they are None.
    """

    write_id: str
    task_index: int
    tablets: tuple[StagedTablet, ...] = ()
    operations: tuple[StagedOperations, ...] = ()
    rows: pa.Table | None = None
    base_version: int | None = None
    base_crc32: int | None = None

    @property
    def has_rows(self) -> bool:
        """Whether the task had any row."""
        return bool(self.tablets or self.operations or self.rows is not None)

    @property
    def tablet_ids(self) -> tuple[str, ...]:
        """The tablets that the task has rows for."""
        found = {part.tablet_id for part in self.tablets}
        return tuple(sorted(found | {part.tablet_id for part in self.operations}))


def is_committed(state: WriteState, manifest: Manifest) -> bool:
    """Whether the write's application version, or a later one, is in `manifest` already."""
    if state.application_id is None or state.application_version is None:
        return False
    committed = manifest.applications.get(state.application_id)
    return committed is not None and committed >= state.application_version


def joined_rows(tasks: Sequence[StagedTask], rows_max: int) -> pa.Table | None:
    """Return the rows that tasks have handed over, in task order; None if others have files.

    So it is if there are more than `rows_max`.
    """
    ordered = sorted(tasks, key=lambda task: task.task_index)
    tables = [task.rows for task in ordered if task.rows is not None]
    count = sum(table.num_rows for table in tables)
    if any(task.tablets or task.operations for task in tasks) or not 0 < count <= rows_max:
        return None
    return pa.concat_tables(tables).combine_chunks()


def check_tasks(table: str, state: WriteState, tasks: Sequence[StagedTask]) -> None:
    """Raise UsageError unless all tasks are of the write, and each has a number of its own."""
    for task in tasks:
        if task.write_id != state.write_id:
            raise UsageError(
                f"table {table!r}: commit of write {state.write_id} was given a task of write"
                f" {task.write_id}"
            )
    numbers = [task.task_index for task in tasks]
    if len(set(numbers)) != len(numbers):
        raise UsageError(
            f"table {table!r}: two staged tasks with one task_index were given to the commit:"
            f" {sorted(numbers)}; give one attempt of each task"
        )


def check_same_schema(table: str, state: WriteState, base: Manifest, newest: Manifest) -> None:
    """Raise ConflictError if the schema has changed since `base` so that rows do not fit it.

    Columns that were added since are missing from the rows of the write, which read as NULL there,
    like any older row.
    """
    if (
        not newest.schema.only_adds_to(base.schema)
        or replace(newest.partition, schema=base.schema) != base.partition
        or {entry.id for entry in newest.tablets} != {entry.id for entry in base.tablets}
        # Rows that stay have cells of an added column, which rows of this write have not.
        or (state.spec.replaces_rows and newest.schema.names != base.schema.names)
    ):
        raise ConflictError(
            f"table {table!r}: the schema was altered during a write (version {base.version} to"
            f" {newest.version}); write again"
        )


def check_history(store: TableStore, state: WriteState, manifest: Manifest) -> None:
    """Raise ConflictError where a computed write's `read_at` is before the history of `manifest`.

    It can then not be known which keys have changed since.
    """
    read_at = state.spec.read_at
    if read_at is not None and manifest.history_start > read_at:
        raise ConflictError(
            f"table {store.name!r}: history after {format_timestamp(read_at)}, when the rows of the"
            f" write were read, was collected up to {format_timestamp(manifest.history_start)};"
            " read them again and write again"
        )
