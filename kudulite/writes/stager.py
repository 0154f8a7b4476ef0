"""Stager: the work of one task of a bulk write, from batches of rows to files of each tablet.

A task checks a batch, splits it by tablet, and resolves the rows of each tablet. All steps work on
whole columns: one hash and one encoding of all rows, one stable sort by tablet, one gather per
column and tablet. Batches are joined and cut (batch_pieces.py), so memory does not grow with the
size of the write; each collected chunk becomes one part per tablet.

**Threads**: tablets are resolved in parallel; numpy and Arrow release the interpreter lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import return_memory
from kudulite.chain.manifest import Manifest
from kudulite.errors import RowError, SchemaError
from kudulite.model.column_cast import cast_chunks, cast_to_column
from kudulite.shown.progress import Progress
from kudulite.storage.names import new_file_name
from kudulite.storage.new_files import NewFiles
from kudulite.storage.storage import check_content
from kudulite.table.background_work import in_threads, threads_for
from kudulite.table.memory_flush import flush_table
from kudulite.table.open_writes import check_write_is_open
from kudulite.table.present import listing
from kudulite.table.row_ids import numbered
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import (
    STAGED_OPERATION_NAME,
    StagedOperations,
    StagedTask,
    WriteState,
    check_history,
    check_same_schema,
    columns_of,
    is_committed,
)
from kudulite.tablet.operation import Operation, mask_of, operation_codes, raise_row_error
from kudulite.tablet.operation_batch import OperationBatch
from kudulite.tablet.resolve import Resolver
from kudulite.tablet.row_gather import RowGather
from kudulite.tablet.staged_tablet import StagedTablet
from kudulite.writes.batch_pieces import Batch, chunks, few_rows, without_preimages

# A column with fewer rows in a chunk is joined, because each chunk costs calls.
CHUNK_ROWS_MIN = 1 << 15


@dataclass(frozen=True)
class Stager:
    """Stages batches of one write against the version `manifest`, in its new `files`."""

    store: TableStore
    state: WriteState
    manifest: Manifest
    files: NewFiles

    @property
    def resolver(self) -> Resolver:
        """The resolver of this write's rows."""
        store, schema = self.store, self.manifest.schema
        mark = ancient_history_mark(store, self.manifest)
        return Resolver(
            self.files,
            store.place,
            store.name,
            schema,
            self.state.spec,
            mark,
        )

    def stage(
        self, batches: Iterable[Batch], task_index: int, rows_max: int | None = None
    ) -> StagedTask:
        """Stage all rows of one task; the names of its files are durable, and nothing is visible.

        Up to `rows_max` rows are not written to files, but handed over. If it is None, the rows are
        of the very version that the stager has. Raises RowError, SchemaError, ConflictError,
        StorageError.
        """
        if self.state.application_id is not None and is_committed(self.state, listing(self.store)):
            for _ in batches:  # its rows may be refused now: those that it inserted are there
                pass
            return StagedTask(self.state.write_id, task_index)
        check_history(self.store, self.state, self.manifest)
        batches = without_preimages(batches, self.state.operation_column)
        if rows_max is None:
            return self._stage_files(batches, task_index)
        few, batches = few_rows(batches, 0 if self.state.spec.is_overwrite else rows_max)
        if few is not None:
            return StagedTask(self.state.write_id, task_index, rows=self.checked(few))
        return self._with_log()._stage_files(batches, task_index)

    def _stage_files(self, batches: Iterable[Batch], task_index: int) -> StagedTask:
        tablets: list[StagedTablet] = []
        operations: list[StagedOperations] = []
        for pieces in chunks(batches):
            staged_bytes = sum(piece.nbytes for piece in pieces)
            self._stage_pieces(pieces, tablets, operations)
            return_memory(staged_bytes)  # that is free now, before more batches are collected
        return self._staged(task_index, tablets, operations)

    def _staged(
        self, task_index: int, tablets: list[StagedTablet], operations: list[StagedOperations]
    ) -> StagedTask:
        self.files.sync()
        return StagedTask(
            self.state.write_id,
            task_index,
            tuple(tablets),
            tuple(operations),
            base_version=self.manifest.version,
            base_crc32=self.manifest.file_crc32,
        )

    def _with_log(self) -> Stager:
        """Return the stager on a version with the rows of the log, where the write needs them.

        The log is flushed for it. The schema stays that of the write.
        """
        base = self.manifest
        if not self.state.needs_rows(base.schema):
            return self
        flush_table(self.store)
        newest = self.store.chain.newest_of(self.state.table_id)
        check_same_schema(self.store.name, self.state, base, newest)
        check_history(self.store, self.state, newest)
        of_write = replace(newest, schema=base.schema, partition=base.partition)
        return replace(self, manifest=of_write)

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
        pieces.clear()
        self._stage_rows(*self._checked(columns, row_count), tablets, operations)

    def stage_checked(self, checked: pa.Table, task_index: int) -> StagedTask:
        """Stage rows that tasks have handed over."""
        tablets: list[StagedTablet] = []
        operations: list[StagedOperations] = []
        stager = self._with_log()
        stager._stage_rows(*split_codes(checked), tablets, operations)
        return stager._staged(task_index, tablets, operations)

    def _stage_rows(
        self,
        rows: pa.Table,
        codes: np.ndarray,
        tablets: list[StagedTablet],
        operations: list[StagedOperations],
    ) -> None:
        if tablets or operations:  # a long write notes that it is still under way
            check_write_is_open(self.store, self.state.write_id)
        if self.manifest.schema.auto_incrementing is not None:
            rows = numbered(self.store, self.manifest, rows, codes <= Operation.UPSERT_IGNORE)
        with Progress(f"write to table {self.store.name!r}") as progress:
            if self.state.is_resolved_at_commit:
                operations += self._stage_operations(rows, codes)
                progress.add(len(codes))
            else:
                tablets += self._stage_resolved(rows, codes, progress)

    # -- checking

    def checked(self, few: pa.Table) -> pa.Table:
        """Return rows of a caller as those of the write, with the number of an operation each.

        Raises RowError, SchemaError.
        """
        rows, codes = self._checked(columns_of(few), few.num_rows)
        return rows.append_column(STAGED_OPERATION_NAME, pa.array(codes))

    def _checked(
        self, columns: dict[str, pa.ChunkedArray], row_count: int
    ) -> tuple[pa.Table, np.ndarray]:
        """Return the rows of a caller as those of the write, and the operation of each."""
        names, operations = list(columns), columns.get(self.state.operation_column or "")
        rows = self._fitted(columns)
        codes = self._operation_codes(operations, names, row_count)
        self._check_nulls(rows, codes)
        return rows, codes

    def _fitted(self, columns: dict[str, pa.ChunkedArray]) -> pa.Table:
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

    def _check_nulls(self, rows: pa.Table, codes: np.ndarray) -> None:
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

    def split(self, rows: pa.Table) -> Iterator[tuple[int, np.ndarray]]:
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
        resolver = self.resolver

        def resolve(split: tuple[int, np.ndarray]) -> StagedTablet:
            number, row_numbers = split
            tablet = self.store.tablet(self.manifest.placed_tablets[number])
            return resolver.resolve(batch.of_tablet(row_numbers), tablet)

        splits = list(self.split(rows))
        sizes = [len(row_numbers) for _, row_numbers in splits]

        def report(done: int) -> None:
            progress.add(sizes[done - 1])

        return in_threads("stage", resolve, splits, threads_for(self.store.storage), report)

    # -- mixed writes

    def _stage_operations(self, rows: pa.Table, codes: np.ndarray) -> list[StagedOperations]:
        """Write each tablet's rows with their operations, for the commit to resolve."""
        rows = rows.append_column(STAGED_OPERATION_NAME, pa.array(codes))
        gather, staged, write_id = RowGather(rows), [], self.state.write_id
        for number, row_numbers in self.split(rows):
            tablet_id = self.manifest.placed_tablets[number].id
            # Its name needs no fsync: the write is over after a power failure.
            path = self.store.tablet_folder(tablet_id) / new_file_name("operations", write_id)
            with self.store.storage.open_sink(path) as sink:
                with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), rows.schema) as writer:
                    arrays = [gather.take(name, row_numbers) for name in rows.column_names]
                    writer.write_table(pa.Table.from_arrays(arrays, schema=rows.schema))
                ref = sink.finish()
            staged.append(StagedOperations(tablet_id, ref))
        return staged

    def resolve_operations(
        self, operations: Iterable[StagedOperations], tablet_id: str
    ) -> list[StagedTablet]:
        """Resolve a mixed write's rows of one tablet, in task order."""
        tables = []
        for staged in operations:
            path = self.store.tablet_folder(tablet_id) / staged.ref.name
            content = self.store.storage.open(path, staged.ref).read_buffer()
            check_content(path, content, staged.ref)
            tables.append(pa.ipc.open_file(content).read_all())
        rows = pa.concat_tables(tables).combine_chunks()
        rows, codes = split_codes(rows)
        batch = OperationBatch.of(rows, codes, self.manifest.schema, self.state.spec)
        entry = self.manifest.entry(tablet_id)
        assert entry is not None
        return [self.resolver.resolve(batch, self.store.tablet(entry))]


def split_codes(checked: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Return rows without the numbers of their operations, and these, uint8[n]."""
    codes = checked.column(STAGED_OPERATION_NAME).to_numpy().astype(np.uint8)
    return checked.drop_columns([STAGED_OPERATION_NAME]), codes
