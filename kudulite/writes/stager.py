"""Stager: the work of one task of a bulk write, from batches of rows to files of each tablet.

A task checks a batch, splits it by tablet, and resolves the rows of each tablet. All steps work on
whole columns: one hash and one encoding of all rows, one stable sort by tablet, one gather per
column and tablet. Batches are joined and cut (batch_pieces.py), so memory does not grow with the
size of the write; each collected chunk becomes one part per tablet.

**Threads**: tablets are resolved in parallel; numpy and Arrow release the interpreter lock.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa

from kudulite.basefile.block_cache import return_memory
from kudulite.chain.manifest import Manifest
from kudulite.errors import RowError, SchemaError
from kudulite.model.column_cast import cast_chunks, cast_to_column
from kudulite.shown.progress import Progress
from kudulite.storage.names import new_operations_name
from kudulite.table.background_work import in_threads
from kudulite.table.open_writes import check_write_is_open
from kudulite.table.row_ids import numbered
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_store import TableStore
from kudulite.table.write_state import (
    STAGED_OPERATION_NAME,
    StagedOperations,
    StagedTask,
    WriteState,
    check_history,
    columns_of,
    is_committed,
)
from kudulite.tablet.operation import Operation, mask_of, operation_codes, raise_row_error
from kudulite.tablet.resolve import OperationBatch, Resolver, StagedTablet
from kudulite.tablet.row_gather import RowGather
from kudulite.writes.batch_pieces import Batch, chunks

# A column with fewer rows in a chunk is joined, because each chunk costs calls.
CHUNK_ROWS_MIN = 1 << 15


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
        return Resolver(
            store.file_system,
            store.folder,
            store.name,
            schema,
            self.state.spec,
            self.state.write_id,
            mark,
        )

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
        check_write_is_open(self.store, self.state)
        resolver = self.resolver

        def resolve(split: tuple[int, np.ndarray]) -> StagedTablet:
            number, row_numbers = split
            tablet = self.store.tablet(self.manifest.placed_tablets[number])
            return resolver.resolve(batch.of_tablet(row_numbers), tablet)

        splits = list(self._split(rows))
        sizes = [len(row_numbers) for _, row_numbers in splits]

        def report(done: int) -> None:
            progress.add(sizes[done - 1])

        return in_threads("stage", resolve, splits, report=report)

    # -- mixed writes

    def _stage_operations(self, rows: pa.Table, codes: np.ndarray) -> list[StagedOperations]:
        """Write each tablet's rows with their operations, for the commit to resolve."""
        check_write_is_open(self.store, self.state)
        rows = rows.append_column(STAGED_OPERATION_NAME, pa.array(codes))
        gather, staged = RowGather(rows), []
        for number, row_numbers in self._split(rows):
            path = f"{self.state.folder}/{new_operations_name()}"
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
        return [self.resolver.resolve(batch, self.store.tablet(entry))]
