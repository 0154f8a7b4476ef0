"""Staging of a bulk write: what its tasks share, its folder, and the work of each task.

    staging/<write id>/write.json        {"base_version": V, "owner": "…" or null}: pins version V
                                         and its files; a new write of an owner ends the old ones
    staging/<write id>/<part id>/…       one folder per part of each attempt of each task

A task checks a batch, splits it by tablet, and resolves the rows of each tablet. All steps work on
whole columns: one hash and one encoding of all rows, one stable sort by tablet, one gather per
column and tablet. Batches are joined and cut (batch_pieces.py), so memory does not grow with the
size of the write; each collected chunk becomes one part per tablet.

Tasks never create the folder of the write itself: after an abort, a task that is still running
fails at its next file and leaves nothing behind. A new write removes the folders of writes that
ended without cleaning up, after a day: a job may compute for hours before its first task writes.

**Threads**: tablets are resolved in parallel; numpy and Arrow release the interpreter lock.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import return_memory
from kudulite.errors import (
    ConflictError,
    KuduliteError,
    RowError,
    SchemaError,
    StorageError,
)
from kudulite.fs.file_system import entries_of, exists, read_file, storage_error
from kudulite.fs.progress import Progress
from kudulite.model.column_cast import cast_chunks, cast_to_column
from kudulite.model.hybrid_time import format_timestamp
from kudulite.table.batch_pieces import Batch, chunks
from kudulite.table.folder import STAGING_FOLDER
from kudulite.table.history import ancient_history_mark
from kudulite.table.manifest import Manifest
from kudulite.table.table_store import TableStore, newest_of
from kudulite.table.tablet_memory import numbered
from kudulite.tablet.operation import (
    Operation,
    WriteSpec,
    mask_of,
    operation_codes,
    raise_row_error,
)
from kudulite.tablet.resolve import OperationBatch, Resolver, StagedTablet
from kudulite.tablet.row_gather import RowGather

# A column with fewer rows in a chunk is joined, because each chunk costs calls.
CHUNK_ROWS_MIN = 1 << 15
STAGED_OPERATION_NAME = "\0operation"  # no column of a table can bear a NUL
THREAD_COUNT = min(4, os.cpu_count() or 1)

Item = TypeVar("Item")
Result = TypeVar("Result")

WRITE_FILE = "write.json"
STAGING_GRACE_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Stager:
    """Stages batches of one write against the version `manifest`."""

    store: TableStore
    state: WriteState
    manifest: Manifest

    @property
    def resolver(self) -> Resolver:
        """The resolver of this write's rows."""
        store, schema = self.store, self.manifest.schema
        mark = ancient_history_mark(store, self.manifest)
        return Resolver(store.file_system, store.folder, store.name, schema, self.state.spec, mark)

    def stage(self, batches: Iterable[Batch], task_index: int) -> StagedTask:
        """Stage all rows of one task. Raises RowError and SchemaError; nothing is visible then."""
        tablets: list[StagedTablet] = []
        operations: list[StagedOperations] = []
        if is_committed(self.state, self.store.newest()):
            for _ in batches:  # its rows may be refused now: those that it inserted are there
                pass
            return StagedTask(self.state.write_id, task_index)
        check_history(self.store, self.state, self.manifest)
        for pieces in chunks(batches):
            staged_bytes = sum(piece.nbytes for piece in pieces)
            self._stage_pieces(pieces, tablets, operations)
            return_memory(staged_bytes)  # that is free now, before more batches are collected
        return StagedTask(self.state.write_id, task_index, tuple(tablets), tuple(operations))

    def _stage_pieces(
        self,
        pieces: list[pa.Table],
        tablets: list[StagedTablet],
        operations: list[StagedOperations],
    ) -> None:
        """Stage the rows of `pieces`, which is emptied, and append the staged parts."""
        row_count = sum(piece.num_rows for piece in pieces)
        if not row_count:
            return
        columns = columns_of(pa.concat_tables(pieces))
        names = list(columns)
        operation_column = columns.get(self.state.operation_column or "")
        pieces.clear()
        rows = self.checked_rows(columns)
        codes = self._operation_codes(operation_column, names, row_count)
        self.check_nulls(rows, codes)
        if self.manifest.schema.auto_incrementing is not None:
            rows = numbered(self.store, self.manifest, rows, codes <= Operation.UPSERT_IGNORE)
        with Progress(f"write to table {self.store.name!r}") as progress:
            if self.state.is_resolved_at_commit:
                operations += self._stage_operations(rows, codes)
                progress.add(row_count)
            else:
                tablets += self._stage_resolved(rows, codes, progress)

    # -- checking

    def checked_rows(self, columns: dict[str, pa.ChunkedArray]) -> pa.Table:
        """Return the write's columns with the table's exact types, those of the key in one piece.

        Takes `columns` out, one by one. Other columns keep their chunks, which are not copied,
        unless these are many small ones. Masks (see `mask_of`) are the last columns.
        """
        schema, key_names = self.manifest.schema, self.manifest.schema.key_names
        names = [*key_names, *self.state.spec.value_columns]
        numbers = schema.auto_incrementing
        if numbers is not None and numbers not in columns:
            row_count = len(next(iter(columns.values()), ()))
            columns[numbers] = pa.chunked_array([pa.nulls(row_count, pa.int64())])
        missing = [name for name in names if name not in columns]
        if missing:
            raise SchemaError(
                f"table {self.store.name!r}: batch without column {missing[0]!r}; it has"
                f" {', '.join(columns)}"
            )
        arrays = []
        for name in names:
            column, table, values = schema.column(name), self.store.name, columns.pop(name)
            is_kept = len(values) >= CHUNK_ROWS_MIN * values.num_chunks and name not in key_names
            cast = cast_chunks if is_kept else cast_to_column
            arrays.append(cast(values, column.type, column=name, table=table))
        masks = [mask_of(name) for name in self.state.spec.partial_columns]
        arrays += [columns.pop(mask) for mask in masks]
        return pa.Table.from_arrays(arrays, names=[*names, *masks])

    def _operation_codes(
        self, column: pa.ChunkedArray | None, names: Sequence[str], row_count: int
    ) -> np.ndarray:
        name, operation = self.state.operation_column, self.state.spec.operation
        if name is None:
            assert operation is not None
            return np.full(row_count, int(operation), dtype=np.uint8)
        if column is None:
            raise SchemaError(
                f"table {self.store.name!r}: batch without operation column {name!r}; it has"
                f" {', '.join(names)}"
            )
        encoded = column.combine_chunks().dictionary_encode()
        if encoded.indices.null_count:
            raise RowError(
                f"table {self.store.name!r}: operation column {name!r} is null in"
                f" {encoded.indices.null_count} rows; nothing was written",
                reason=RowError.REASON_NULL,
                row_count=encoded.indices.null_count,
            )
        what = f"table {self.store.name!r}: operation column {name!r}"
        codes = operation_codes(encoded.dictionary.to_pylist(), what, self.state.spec.is_merge)
        operations: np.ndarray = np.array(codes, np.uint8)[encoded.indices.to_numpy()]
        return operations

    def check_nulls(self, rows: pa.Table, codes: np.ndarray) -> None:
        """Refuse nulls in key columns, and in NOT NULL columns of rows that would store them."""
        spec = self.state.spec
        for name in (*self.manifest.schema.key_names, *spec.value_columns):
            column = self.manifest.schema.column(name)
            values = rows.column(name)
            if column.auto_incrementing:
                self._check_ids(name, rows, codes)
            if column.nullable or column.auto_incrementing or not values.null_count:
                continue
            is_key = name in self.manifest.schema.key_names
            if not is_key and spec.ignore_null:
                continue
            refused = values.is_null().to_numpy()
            if not is_key:
                refused = refused & (codes < Operation.DELETE)
            if name in spec.partial_columns:
                refused = refused & rows.column(mask_of(name)).to_numpy()
            if refused.any():
                what = f"{'key ' if is_key else ''}column {name!r}"
                self._refuse(what, RowError.REASON_NULL, rows, refused)

    def _check_ids(self, name: str, rows: pa.Table, codes: np.ndarray) -> None:
        """Refuse an id that an insert gives, none where another operation needs it, and one < 1.

        An overwrite may give ids or leave them out; rows that are brought back have theirs.
        """
        spec, values = self.state.spec, rows.column(name)
        is_given = values.is_valid().to_numpy()
        is_insert = codes <= Operation.INSERT_IGNORE
        if not (spec.is_overwrite or spec.brings_back) and (is_insert & is_given).any():
            self._refuse(repr(name), RowError.REASON_ID_GIVEN, rows, is_insert & is_given)
        lacks_id = ~is_given & ~is_insert
        if not spec.is_overwrite and lacks_id.any():
            self._refuse(f"key column {name!r}", RowError.REASON_NULL, rows, lacks_id)
        is_bad = is_given & (values.fill_null(1).to_numpy() < 1)
        if is_bad.any():
            what = f"{name!r}, whose values begin with 1"
            self._refuse(what, RowError.REASON_INVALID, rows, is_bad)

    def _refuse(self, what: str, reason: str, rows: pa.Table, refused: np.ndarray) -> NoReturn:
        numbers, schema = np.flatnonzero(refused), self.manifest.schema
        raise_row_error(self.store.name, what, reason, rows, schema, numbers)

    # -- splitting

    def _split(self, rows: pa.Table) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (tablet index, its row numbers in batch order)."""
        schema, partition = self.manifest.schema, self.manifest.partition
        columns = {name: rows.column(name).chunk(0) for name in schema.key_names}
        index = partition.tablet_index(columns, rows.num_rows)
        if (index < 0).any() and not self.state.spec.ignores_absent_rows:
            what = f"range columns ({', '.join(partition.range_columns)})"
            self._refuse(what, RowError.REASON_NO_PARTITION, rows, index < 0)
        if partition.tablet_count == 1:
            yield 0, np.flatnonzero(index == 0)
            return
        # A stable sort of small integers is a radix sort, ten times faster than of int32. Rows of
        # no tablet are last, because -1 is the greatest number without a sign.
        small = index.astype(np.uint16 if partition.tablet_count < 1 << 16 else np.uint32)
        order = np.argsort(small, kind="stable")
        counts = np.bincount(index[index >= 0], minlength=partition.tablet_count)
        stops = np.cumsum(counts)
        for number in np.flatnonzero(counts):
            yield int(number), order[stops[number] - counts[number] : stops[number]]

    def _stage_resolved(
        self, rows: pa.Table, codes: np.ndarray, progress: Progress
    ) -> list[StagedTablet]:
        batch = OperationBatch.of(rows, codes, self.manifest.schema, self.state.spec)
        staging = new_part_folder(self.store, self.state)
        resolver = self.resolver

        def resolve(split: tuple[int, np.ndarray]) -> StagedTablet:
            number, row_numbers = split
            tablet = self.store.tablet(self.manifest.placed_tablets[number])
            return resolver.resolve(batch.of_tablet(row_numbers), tablet, staging)

        splits = list(self._split(rows))
        sizes = [len(row_numbers) for _, row_numbers in splits]

        def report(done: int) -> None:
            progress.add(sizes[done - 1])

        return in_threads("stage", resolve, splits, report=report)

    # -- mixed writes

    def _stage_operations(self, rows: pa.Table, codes: np.ndarray) -> list[StagedOperations]:
        """Write each tablet's rows with their operations, for the commit to resolve."""
        staging = new_part_folder(self.store, self.state)
        rows = rows.append_column(STAGED_OPERATION_NAME, pa.array(codes))
        gather, staged = RowGather(rows), []
        for number, row_numbers in self._split(rows):
            path = f"{staging}/operations-{uuid.uuid4().hex}.arrow"
            with self.store.file_system.open_sink(self.store.folder / path) as sink:
                with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), rows.schema) as writer:
                    arrays = [gather.take(name, row_numbers) for name in rows.column_names]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=rows.schema))
                sink.finish()
            staged.append(StagedOperations(self.manifest.placed_tablets[number].id, path))
        return staged

    def resolve_operations(
        self, operations: Iterable[StagedOperations], tablet_id: str
    ) -> list[StagedTablet]:
        """Resolve a mixed write's rows of one tablet, in task order."""
        tables = []
        for staged in operations:
            with pa.memory_map(str(self.store.folder / staged.path)) as source:
                tables.append(pa.ipc.open_file(source).read_all())
        rows = pa.concat_tables(tables).combine_chunks()
        codes = rows.column(STAGED_OPERATION_NAME).to_numpy().astype(np.uint8)
        rows = rows.drop_columns([STAGED_OPERATION_NAME])
        batch = OperationBatch.of(rows, codes, self.manifest.schema, self.state.spec)
        entry = self.manifest.entry(tablet_id)
        assert entry is not None
        staging = new_part_folder(self.store, self.state)
        return [self.resolver.resolve(batch, self.store.tablet(entry), staging)]


def in_threads(
    purpose: str,
    work: Callable[[Item], Result],
    items: Collection[Item],
    thread_count: int = THREAD_COUNT,
    report: Callable[[int], None] = lambda done: None,
) -> list[Result]:
    """Return `work` of each item, in order; several run in parallel. `report` gets the number done.

    After an error no further item begins.
    """
    results: list[Result] = []
    with ThreadPoolExecutor(thread_count, thread_name_prefix=f"kudulite-{purpose}") as pool:
        for result in pool.map(work, items) if len(items) > 1 else map(work, items):
            results.append(result)
            report(len(results))
    return results


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


def begin_write(store: TableStore, state: WriteState) -> bool:
    """Make the staging folder of a write, pinning its base version; end others of its owner.

    False where the base version was removed before it was pinned: the write is ended, and may begin
    again on the newest version.
    """
    if state.owner is not None:  # of its writes that were killed, and of one under way
        for staged in entries_of(store.folder / STAGING_FOLDER):
            if _read_pin(staged).get("owner") == state.owner:
                _end(store, staged)
    folder = store.folder / state.folder
    pin = json.dumps({"base_version": state.base_version, "owner": state.owner}).encode()
    try:
        with of_same_table(store, state):
            store.file_system.make_directory(folder)
            store.file_system.write_file(folder / WRITE_FILE, pin)
    except KuduliteError:
        store.file_system.remove_tree(folder)
        raise
    if store.has_version(state.base_version):
        return True
    end_write(store, state)
    return False


@contextlib.contextmanager
def of_same_table(store: TableStore, state: WriteState) -> Iterator[None]:
    """Raise TableNotFoundError or ConflictError for a missing file of a table that was moved.

    A StorageError is left where the table of the write is still there.
    """
    try:
        yield
    except StorageError as error:
        if error.errno == errno.ENOENT:
            newest_of(store, state.table_id)
        raise


@contextlib.contextmanager
def of_open_write(store: TableStore, state: WriteState) -> Iterator[None]:
    """Do as `of_same_table`, and raise ConflictError where the write was aborted."""
    with of_same_table(store, state):
        try:
            yield
        except StorageError as error:
            if error.errno == errno.ENOENT and store.exists():
                check_write_is_open(store, state)
            raise


def base_of(store: TableStore, state: WriteState) -> Manifest:
    """Return the version that a write is resolved against.

    Raises ConflictError where the write is over or that version was removed, StorageError.
    """
    try:
        base = store.pinned_version(state.base_version, state.base_crc32)
    except StorageError as error:
        check_write_is_open(store, state)
        if error.errno == errno.ENOENT:
            raise _base_is_gone(store, state) from error
        raise
    if base.file_crc32 != state.base_crc32:
        raise _base_is_gone(store, state)
    return base


def _base_is_gone(store: TableStore, state: WriteState) -> ConflictError:
    return ConflictError(
        f"table {store.name!r}: version {state.base_version}, which write {state.write_id} was"
        " begun on, was removed by a garbage collection without grace time; write again"
    )


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


def new_part_folder(store: TableStore, state: WriteState) -> str:
    """Make a folder for one part of a write; returns it relative to the table's folder.

    Raises ConflictError when the write was aborted, or removed as abandoned.
    """
    check_write_is_open(store, state)
    part = f"{state.folder}/{uuid.uuid4().hex}"
    store.file_system.make_directory(store.folder / part)
    return part


def check_write_is_open(store: TableStore, state: WriteState) -> None:
    """Raise ConflictError unless the staging folder of a write is there."""
    if not exists(store.folder / state.folder / WRITE_FILE):
        raise ConflictError(
            f"table {store.name!r}: write {state.write_id} was aborted, or removed as abandoned;"
            " write again"
        )


def end_write(store: TableStore, state: WriteState) -> None:
    """Remove what a write has staged and not yet moved into the table.

    The folder is renamed first, so that a task that is still running fails at its next file
    instead of leaving one behind.
    """
    _end(store, store.folder / state.folder)


def _end(store: TableStore, folder: Path) -> None:
    ended = folder.with_name(f".ended-{folder.name}")
    with contextlib.suppress(StorageError):  # it does not exist any more
        store.file_system.rename(folder, ended)
    store.file_system.remove_tree(ended)


def read_pinned_version(folder: Path) -> int | None:
    """Return the base version that a staging folder pins, None where it cannot be read."""
    version = _read_pin(folder).get("base_version")
    return version if isinstance(version, int) else None


def _read_pin(folder: Path) -> dict[str, Any]:
    """Return the content of a write's pin file, empty where it cannot be read."""
    try:
        pin = json.loads(read_file(folder / WRITE_FILE))
    except (KuduliteError, ValueError, RecursionError):
        return {}
    return pin if isinstance(pin, dict) else {}


def collect_staging_garbage(store: TableStore, grace_seconds: float = STAGING_GRACE_SECONDS) -> int:
    """Remove staging folders in which nothing was written during the grace time."""
    horizon = time.time() - grace_seconds
    count = 0
    for folder in entries_of(store.folder / STAGING_FOLDER):
        if is_older(folder, horizon):
            store.file_system.remove_tree(folder)
            count += 1
    return count


def open_writes(store: TableStore) -> list[str]:
    """Return the ids of the writes that have a staging folder: neither committed nor aborted.

    Each pins the version that it read, with its files.
    """
    folders = entries_of(store.folder / STAGING_FOLDER)
    return [folder.name for folder in folders if read_pinned_version(folder) is not None]


def is_older(folder: Path, horizon: float) -> bool:
    """Whether nothing in a tree changed since `horizon`, stopping at the first that did.

    A tree that is removed meanwhile is not older: there is nothing left to do.
    """
    try:
        if folder.stat().st_mtime >= horizon:
            return False
        return all(path.stat().st_mtime < horizon for path in folder.rglob("*"))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error("read", folder, error) from error
