"""Native plans: the base files that another Parquet reader may read, and the rows beside them.

    rows at T  =  rows of `files`, except the positions `excluded` of each    read by the caller
               +  `rows`, an Arrow table                                      few rows, read here
               +  the rows of `tokens`                                        read by workers

A row of a base file is as it was at T if no delta visible at T changes it. All other rows are
excluded from the files. They are in `rows` or `tokens`, with their values at T. So are the rows in
memory, and the rows of rowsets that have too many changes or that the caller cannot read exactly.

With overlays, a row of which deltas set only some cells stays in its file, and the caller replaces
these cells. Excluded are deleted rows, rows that deltas set as a whole, and rows that memory
changes. So base data is decoded here only for the keys of excluded rows, and for rows in memory.

**Invariants**: (1) files, rows and tokens are of one version of each tablet, pinned by the plan:
together they have every row of the snapshot once; (2) tokens never need the log: all rows that
memory changes or adds are in `rows`; (3) a plan can be read as long as the files of its versions
exist: for the grace time after a compaction has replaced them.

**Threads**: any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from kudulite.basefile.base_data import BaseDataFile
from kudulite.basefile.block_cache import BlockCache
from kudulite.chain.manifest import TabletEntry
from kudulite.delta.delta_applier import (
    ChangeSplit,
    ColumnApplier,
    DeltaApplier,
    difference,
    distinct,
)
from kudulite.delta.scatter import select
from kudulite.errors import StorageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.predicate import BoundPredicates
from kudulite.model.predicate_constraint import ColumnConstraint, DomainKey, domain_value
from kudulite.model.schema import Column, Schema
from kudulite.reads.scan import read_ahead
from kudulite.reads.tokens import RowSetToken
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.storage.storage import Storage
from kudulite.table.memory_flush import flush_table
from kudulite.table.read_request import Read
from kudulite.table.scan_plan import entries_to_scan
from kudulite.table.snapshot import tablet_at
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet import Tablet
from kudulite.tablet.tablet_scan import BlockRead, ChosenRows, DeltaRead, chosen_reads

_NO_ROWS = np.empty(0, np.int64)
# Base data is compressed: what its rows take as Arrow, by experience.
_ARROW_FACTOR = 4


@dataclass(frozen=True)
class NativeLimits:
    """How many rows a plan leaves to the reader, and how many of the rest it returns as Arrow."""

    # Excluded rows of a rowset, and all changed ones. A plan with overlays does not exclude rows of
    # which only some cells have changed. Above either, reading the whole rowset here is cheaper.
    excluded_fraction_max: float = 0.25
    changed_fraction_max: float = 1.0
    # Changed rows of all rowsets. Above this, rowsets with the most changes become tokens.
    excluded_rows_max: int = 4_000_000
    # The size of `rows`, and of the compressed base data that is decoded for them. Above either,
    # `rows` are only those that memory changes or adds.
    handed_bytes_max: int = 32 << 20
    decoded_bytes_max: int = 256 << 20
    # Base data of rowsets that are left to the tokens as a whole, as a fraction of all base data.
    # Above this, so is all other base data.
    tokens_fraction_max: float = 1.0
    # Rows of a rowset between the bounds that `where` sets for keys. With so few, they are `rows`.
    bounded_rows_max: int = 0
    # With more unflushed rows, the table is flushed first if it can be written.
    memory_rows_max: int = 200_000


NATIVE_LIMITS = NativeLimits()


@dataclass(frozen=True)
class NativeColumn:
    """One column of a plan as it is stored in a base file.

    `stored_name` is None if the file does not have the column: all its rows show `default` then.
    The type in the file may be narrower than the column's current type.
    """

    column: Column
    stored_name: str | None
    stored_type: pa.DataType | None
    base: BaseDataFile = field(repr=False, compare=False)

    @property
    def default(self) -> Any:
        """The value in rows that are older than the column."""
        return self.column.read_default

    @cached_property
    def encodings(self) -> frozenset[str]:
        """The encodings of the column's pages."""
        return frozenset() if self.stored_name is None else self.base.encodings(self.stored_name)

    @property
    def may_have_nan(self) -> bool:
        """Whether a value in the file, or an element of an array, may be NaN.

        Parquet's statistics leave NaN out. Files of older software do not say: True for all floats.
        """
        return self.stored_name is not None and self.base.may_have_nan(self.stored_name)

    @cached_property
    def bounds(self) -> tuple[Any, Any] | None:
        """The least and the greatest date or timestamp in the file; None if they are not known."""
        if self.stored_name is None or self.column.type.name not in ("date", "unixtime_micros"):
            return None
        groups = range(self.base.row_group_count)
        found = [self.base.statistics(group, self.stored_name) for group in groups]
        known = [item for item in found if item is not None and None not in item[:2]]
        if len(known) < len(found):
            return None
        return min(item[0] for item in known), max(item[1] for item in known)


@dataclass(frozen=True)
class NativeFile:
    """A base file, and the ascending int64 positions of the rows in it that must be skipped.

    In a plan with overlays, other rows have changed cells in the `overlaid` columns. The process
    that has planned it can read these cells.
    """

    path: str
    size_bytes: int
    row_count: int
    columns: tuple[NativeColumn, ...]
    stored_names: tuple[str, ...]  # of all columns in the file
    excluded: np.ndarray
    overlaid: tuple[Column, ...] = ()
    applier: DeltaApplier | None = field(default=None, repr=False)
    storage: Storage = field(kw_only=True, repr=False)

    @property
    def is_changed(self) -> bool:
        """Whether some of its rows are not as the snapshot has them."""
        return len(self.excluded) > 0 or len(self.overlaid) > 0

    def check_exists(self) -> None:
        """Raise StorageError if the file is gone."""
        self.storage.length(self.path)

    def cells(self, column: Column) -> ColumnApplier | None:
        """Return the changed cells of a column, those of excluded rows among them, if any."""
        if column not in self.overlaid or self.applier is None:
            return None
        return self.applier.column(column.id, column.type.arrow)

    def changed_cells(self, column: Column) -> tuple[np.ndarray, pa.Array]:
        """Return the positions of the changed cells of a column, and their values at the snapshot.

        Positions are int64 and ascending, without excluded rows. Values are of the column's type.
        """
        cells = self.cells(column)
        if cells is None:
            return _NO_ROWS, pa.nulls(0, column.type.arrow)
        positions = difference(cells.rowids, self.excluded)
        return positions, select(cells.values, np.searchsorted(cells.rowids, positions))


@dataclass(frozen=True)
class NativeCondition:
    """A condition on one column, with values of the column's own type.

    The column must be NULL if `is_null`. Otherwise it must not be NULL and, as far as they are
    given, be one of `values`, none of `excluded`, ≥ `lower` and ≤ `upper`. Bounds of strings and
    binary are bytes, and their `upper` is exclusive.
    """

    column: Column
    is_null: bool = False
    values: tuple[Any, ...] | None = None
    lower: Any = None
    upper: Any = None
    excluded: tuple[Any, ...] = ()


@dataclass(frozen=True)
class NativeDisjunction:
    """A condition that a row meets if it meets all conditions of at least one branch."""

    branches: tuple[tuple[NativeCondition | NativeDisjunction, ...], ...]


@dataclass(frozen=True)
class NativePlan:
    """All matching rows of a table at `timestamp`: in files, as Arrow rows, and in tokens.

    The reader of the files must apply `conditions`. `rows` and the rows of `tokens` meet them.
    """

    timestamp: Timestamp
    conditions: tuple[NativeCondition | NativeDisjunction, ...]
    schema: Schema  # of the table, when it was planned
    columns: tuple[Column, ...]
    files: tuple[NativeFile, ...]
    rows: pa.Table
    tokens: tuple[RowSetToken, ...]


def plan_native(
    read: Read[ScanSpec],
    is_readable: Callable[[NativeFile], bool],
    limits: NativeLimits,
    *,
    with_overlays: bool = False,
) -> NativePlan:
    """Do as `Table.native_plan`."""
    spec = read.spec
    tablets = _pinned_tablets(read)
    if sum(tablet.memory_row_count for _, tablet in tablets) > limits.memory_rows_max:
        try:
            flush_table(read.store)
        except StorageError:
            pass  # a directory that cannot be written: its rows are handed over all the same
        tablets = _pinned_tablets(read)
    planner = _Planner(spec, is_readable, limits, with_overlays, read.store.cache)
    for entry, tablet in tablets:
        planner.add_tablet(entry, tablet)
    planner.limit_excluded()
    planner.limit_tokens()
    rows, left = planner.handed_over(read.schema)
    return NativePlan(
        timestamp=Timestamp(read.plan.timestamp),
        conditions=_conditions(spec.predicates),
        schema=spec.schema,
        columns=tuple(spec.schema.column(name) for name in spec.names),
        files=tuple(rest.file for rest in planner.found if rest.file is not None),
        rows=rows,
        # One for each rowset; `pack_tokens` puts small ones together.
        tokens=tuple(
            RowSetToken(read.plan, rest.decoded_bytes, rest.row_count, rest.entry, (rest.chosen,))
            for rest in left
        ),
    )


def _conditions(found: BoundPredicates) -> tuple[NativeCondition | NativeDisjunction, ...]:
    constraints = [found.constraints[n] for n in found.columns if n in found.constraints]
    disjunctions = [
        NativeDisjunction(tuple(_conditions(branch) for branch in disjunction.branches))
        for disjunction in ([] if found.is_empty else found.disjunctions)
    ]
    return (*(_condition(c) for c in constraints if not c.is_trivial), *disjunctions)


def _condition(constraint: ColumnConstraint) -> NativeCondition | NativeDisjunction:
    """Return the condition that the values are in one of the constraint's parts."""
    column, keys, without = constraint.column, constraint.keys, constraint.without
    parts = [NativeCondition(column, is_null=True)] if constraint.has_null else []
    if constraint.has_all_values:
        parts.append(NativeCondition(column))
    elif constraint.edges and not without.spans and len(without.points) < constraint.range_count:
        parts.append(NativeCondition(column, excluded=_values(column, without.points)))
    elif keys and len(keys) <= 2 * constraint.range_count:
        parts.append(NativeCondition(column, values=_values(column, keys)))
    else:
        parts += [_in_span(column, *span) for span in constraint.spans]
        if constraint.points:
            parts.append(NativeCondition(column, values=_values(column, constraint.points)))
    return parts[0] if len(parts) == 1 else NativeDisjunction(tuple((part,) for part in parts))


def _values(column: Column, keys: Sequence[DomainKey]) -> tuple[Any, ...]:
    return tuple(domain_value(key, column.type) for key in keys)


def _in_span(column: Column, lower: DomainKey, upper: DomainKey) -> NativeCondition:
    if not column.type.is_bytes:
        lower = None if lower is None else domain_value(lower, column.type)
        upper = None if upper is None else domain_value(upper - 1, column.type)
    return NativeCondition(column, lower=lower, upper=upper)


def _pinned_tablets(read: Read[ScanSpec]) -> list[tuple[TabletEntry, Tablet]]:
    entries = entries_to_scan(read.store, read.manifest, read.spec)
    return [_pinned(read.store, entry, read.spec.timestamp) for entry in entries]


def _pinned(store: TableStore, entry: TabletEntry, timestamp: int) -> tuple[TabletEntry, Tablet]:
    """Return the tablet with its log, and the entry that leads to the same superblock."""
    while True:
        tablet = tablet_at(store, entry, timestamp)
        entry = store.chain.last_seen().readable_entry(entry.id) or entry
        pinned = store.tablet(entry).superblock
        if pinned is tablet.superblock or pinned == tablet.superblock:
            return entry, tablet


@dataclass
class _Rest:
    """One rowset of a plan: its file if that is read natively, and the rows beside it."""

    entry: TabletEntry
    rowset: DiskRowSet  # without memory
    in_memory: np.ndarray  # the rows that memory changes
    chosen: ChosenRows
    positions: np.ndarray | None  # that `chosen` names; None: all
    file: NativeFile | None

    @property
    def row_count(self) -> int:
        return self.rowset.meta.row_count if self.positions is None else len(self.positions)

    @property
    def excluded_count(self) -> int:
        return 0 if self.file is None else len(self.file.excluded)

    @property
    def decoded_bytes(self) -> int:
        """Compressed bytes of the row groups that hold the rows."""
        meta = self.rowset.meta
        if self.positions is None:
            return meta.base_bytes
        groups = -(-meta.row_count // meta.rows_per_group)
        bounds = np.arange(groups + 1) * meta.rows_per_group
        touched = np.count_nonzero(np.diff(np.searchsorted(self.positions, bounds)))
        return meta.base_bytes * int(touched) // max(1, groups)

    @property
    def size_bytes(self) -> int:
        meta = self.rowset.meta
        return meta.base_bytes * self.row_count // max(1, meta.row_count) + 1

    def key(self, spec: ScanSpec) -> tuple[object, ...]:
        """Return the key in the cache of the rows that a scan without conditions finds."""
        meta = self.rowset.meta
        return (
            *(str(self.rowset.folder / base.ref.name) for base in meta.base),
            *(delta.ref.name for delta in (*meta.redo, *meta.undo)),
            min(spec.timestamp, meta.timestamp_max),
            *((c.id, c.type, repr(c.read_default)) for c in map(spec.schema.column, spec.names)),
            self.chosen.only_changed,
            self.chosen.without,
        )

    def as_whole(self) -> None:
        """Leave the rowset to the tokens."""
        self.file = None
        self.chosen = ChosenRows(self.rowset.meta.id, False, self.in_memory.tobytes())
        self.positions = self.chosen.positions(self.rowset, 0)


@dataclass
class _Planner:
    """Sorts the rowsets of a snapshot into files and rests."""

    spec: ScanSpec
    is_readable: Callable[[NativeFile], bool]
    limits: NativeLimits
    with_overlays: bool
    cache: BlockCache
    found: list[_Rest] = field(default_factory=list)
    few_rows: list[BlockRead | DeltaRead] = field(default_factory=list)

    def add_tablet(self, entry: TabletEntry, tablet: Tablet) -> None:
        spec = self.spec
        if spec.predicates.is_empty:
            return
        for rowset in tablet.visible(spec.timestamp).overlapping(spec.lower, spec.upper):
            if isinstance(rowset, DiskRowSet):
                self._add_rowset(entry, rowset)
            else:
                self.few_rows += [BlockRead(rowset, b, spec) for b in rowset.blocks(spec)]

    def _add_rowset(self, entry: TabletEntry, rowset: DiskRowSet) -> None:
        timestamp = self.spec.timestamp
        if self.spec.lower is not None or self.spec.upper is not None:
            start, stop = rowset.rowids_between(self.spec.lower, self.spec.upper)
            if stop - start <= self.limits.bounded_rows_max:
                self.few_rows += chosen_reads(rowset, np.arange(start, stop), self.spec)
                return
        plain = rowset if rowset.dms is None else rowset.with_dms(None)
        in_memory = _NO_ROWS
        if rowset.dms is not None and len(rowset.dms):
            in_memory = DeltaApplier((), timestamp, memory=rowset.dms).changed
        if len(in_memory):
            # The only place that sees memory together with files is this process.
            self.few_rows += chosen_reads(rowset, in_memory, self.spec)
        file = self._file(plain, in_memory)
        if file is not None and self.with_overlays:
            split = self._split(plain)
            without = _joined(split.partial, in_memory)
            chosen = ChosenRows(rowset.meta.id, True, without.tobytes())
            positions: np.ndarray | None = difference(split.whole, in_memory)
        else:
            chosen = ChosenRows(rowset.meta.id, file is not None, in_memory.tobytes())
            positions = chosen.positions(plain, timestamp)
        self.found.append(_Rest(entry, plain, in_memory, chosen, positions, file))

    def _file(self, rowset: DiskRowSet, in_memory: np.ndarray) -> NativeFile | None:
        """Return the base file of a rowset without memory, or None if it is not read natively."""
        spec = self.spec
        columns = [spec.schema.column(name) for name in spec.names] or list(spec.schema.columns)
        applier = rowset.applier(spec.timestamp)
        excluded, overlaid = applier.changed, list[Column]()
        if self.with_overlays:
            split = self._split(rowset)
            excluded = split.whole
            overlaid = [column for column in columns if column.id in split.column_ids]
        excluded, changed = _joined(excluded, in_memory), _joined(applier.changed, in_memory)
        row_count, limits = rowset.meta.row_count, self.limits
        if (
            len(excluded) > limits.excluded_fraction_max * row_count
            or len(changed) > limits.changed_fraction_max * row_count
        ):
            return None
        base = rowset.base.only_file(columns)
        if base is None:
            return None
        file = NativeFile(
            path=str(base.path),
            size_bytes=base.ref.length,
            row_count=rowset.meta.row_count,
            columns=tuple(_stored_column(base, column) for column in columns),
            stored_names=tuple(base.name_by_id.values()),
            excluded=excluded,
            overlaid=tuple(overlaid),
            applier=applier,
            storage=rowset.storage,
        )
        return file if self.is_readable(file) else None

    def _split(self, rowset: DiskRowSet) -> ChangeSplit:
        """Return the changes of the value columns that are read, of a rowset without memory."""
        schema, keys = self.spec.schema, set(self.spec.schema.key_names)
        ids = [schema.column(name).id for name in self.spec.names if name not in keys]
        return rowset.applier(self.spec.timestamp).split(ids)

    def limit_excluded(self) -> None:
        """Leave the rowsets with the most changes to the tokens, until the others' are few."""
        native = [rest for rest in self.found if rest.file is not None]
        total = sum(rest.excluded_count for rest in native)
        for rest in sorted(native, key=lambda rest: -rest.excluded_count):
            if total <= self.limits.excluded_rows_max:
                return
            total -= rest.excluded_count
            rest.as_whole()

    def limit_tokens(self) -> None:
        """Leave all rowsets to the tokens if most of the data is left to them."""
        whole = sum(rest.rowset.meta.base_bytes for rest in self.found if rest.file is None)
        total = sum(rest.rowset.meta.base_bytes for rest in self.found)
        if whole > self.limits.tokens_fraction_max * total:
            for rest in self.found:
                rest.as_whole()

    def handed_over(self, schema: pa.Schema) -> tuple[pa.Table, list[_Rest]]:
        """Return the few rows and those of few rests as Arrow, and the rests that are left."""
        batches = list(read_ahead(self.few_rows))
        left = [rest for rest in self.found if rest.row_count]
        # Rows beside tokens would save the caller nothing, as it reads those anyway.
        if self._are_few(left):
            for rest in left:
                batches += self._rows_of(rest)
            left = []
        if not len(schema):
            return _rows_without_columns(sum(batch.num_rows for batch in batches)), left
        parts = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in batches)
        return pa.Table.from_batches(parts, schema), left

    def _rows_of(self, rest: _Rest) -> Sequence[pa.RecordBatch]:
        """Return the rows beside a file.

        The cache keeps them if there are no conditions: a table that is read natively is planned
        for each query, and most of the base data is decoded for a few scattered rows.
        """

        def read() -> tuple[Sequence[pa.RecordBatch], int]:
            rows = tuple(read_ahead(chosen_reads(rest.rowset, rest.positions, self.spec)))
            return rows, sum(batch.get_total_buffer_size() for batch in rows)

        if self.spec.has_conditions:
            return read()[0]
        found: Sequence[pa.RecordBatch] = self.cache.get_or_load(rest.key(self.spec), read)
        return found

    def _are_few(self, rests: list[_Rest]) -> bool:
        size = _ARROW_FACTOR * sum(rest.size_bytes for rest in rests)
        if size > self.limits.handed_bytes_max:
            return False
        return sum(rest.decoded_bytes for rest in rests) <= self.limits.decoded_bytes_max


def _joined(rowids: np.ndarray, others: np.ndarray) -> np.ndarray:
    return distinct(np.concatenate([rowids, others])) if len(others) else rowids


def _rows_without_columns(row_count: int) -> pa.Table:
    empty = pa.StructArray.from_buffers(pa.struct([]), row_count, [None])
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(empty)])


def _stored_column(base: BaseDataFile, column: Column) -> NativeColumn:
    name = base.name_by_id.get(column.id)
    stored_type = None if name is None else base.schema.field(name).type
    return NativeColumn(column, name, stored_type, base)
