"""WriteState: what all tasks of a bulk write share, and what each of them hands to the commit."""

from dataclasses import dataclass

import pyarrow as pa

from kudulite.chain.manifest import Manifest
from kudulite.errors import ConflictError
from kudulite.model.hybrid_time import format_timestamp
from kudulite.storage.names import STAGING_FOLDER
from kudulite.table.table_store import TableStore
from kudulite.tablet.operation import Operation, WriteSpec
from kudulite.tablet.resolve import StagedTablet

STAGED_OPERATION_NAME = "\0operation"  # no column of a table can bear a NUL


def columns_of(rows: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of rows by name; names are distinct."""
    return dict(zip(rows.column_names, rows.columns, strict=True))


@dataclass(frozen=True)
class WriteState:
    """Parameters shared by all tasks and the commit of one write; picklable.

    `base_version` is the version that all rows are resolved against, whose file ends with
    `base_crc32`. `operation_column` names the batch's column of operations in a mixed write. The
    `label`, if there is one, names the write in the list of versions, beside its `message`.
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

    @property
    def folder(self) -> str:
        """The write's staging folder, relative to the table's."""
        return f"{STAGING_FOLDER}/{self.write_id}"

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
    """Rows of one tablet in a mixed write, not resolved yet, in an Arrow IPC file."""

    tablet_id: str
    path: str


@dataclass(frozen=True)
class StagedTask:
    """The staged parts of one attempt of one task of a write; small and picklable."""

    write_id: str
    task_index: int
    tablets: tuple[StagedTablet, ...] = ()
    operations: tuple[StagedOperations, ...] = ()

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
