"""Scans and changes of a table as Arrow: the rows at one moment, or those that changed between two.

    table.scan(at=moment)          one row for each key at the moment
    table.changes(start, end)      one row for each key with a change in (start, end]

    the table's columns   _change_type       _commit_version       _commit_timestamp
    the row at `end`      insert             when it changed       its wall time, to the
       at `start`         [update_preimage]  last: a HybridTime,   microsecond, in UTC
       at `end`           update_postimage   as WriteResult has,
       at `start`         delete             for `at` and `start`

Preimages are there with images="both". Applied to the table as it was at `start`, with
`operation_column="_change_type"`, the changes make the table as it was at `end`; preimages are
nothing to write.

Both are planned when the object is made: columns and predicates are checked, and the moments are
settled. They are read when a result is asked for, anew each time. A few threads read blocks ahead
of the consumer. Memory is bounded by the blocks in flight; changes, and a scan in key order, also
hold a block of each rowset that a key is in.

`ArrowResult` is what both have in common: the forms in which users get the rows.
"""

from __future__ import annotations

import errno
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from kudulite.basefile.base_data import CUT_ROWS_MAX
from kudulite.chain.folder import has_table_files
from kudulite.chain.manifest import TabletEntry
from kudulite.errors import OptionError, OutOfMemoryError, StorageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.predicate import BoundPredicates
from kudulite.model.row_order import sorted_batches
from kudulite.model.schema import Column
from kudulite.model.values import python_rows
from kudulite.reads.pandas_frames import frame_of
from kudulite.rowset.merge import RowsRead, in_turn
from kudulite.rowset.rowset import ScannedRows
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec
from kudulite.shown.html import ROWS_SHOWN, html_rows
from kudulite.shown.progress import Progress
from kudulite.storage.address import Address, parse_address
from kudulite.storage.storage import Storage
from kudulite.storage.storage_error import is_out_of_memory
from kudulite.table.environment import environment_beside
from kudulite.table.read_request import (
    Read,
    ReadPlan,
    ReadRequest,
    plan_changes,
    plan_rows,
    read_of,
    read_of_plan,
)
from kudulite.table.scan_plan import Spec, entries_to_diff, entries_to_scan, in_schema, open_tablets
from kudulite.table.snapshot import tablet_at
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet import Tablet
from kudulite.tablet.tablet_scan import (
    block_reads,
    count_rows,
    diff_reads,
    open_for_diff,
    open_for_scan,
    ordered_reads,
)

# Arrow's number of threads: that of cores, or OMP_NUM_THREADS, which Spark sets to one for a task.
READ_THREADS = min(8, pa.cpu_count())
# A row group of `to_parquet` has at least as many rows; an iteration makes so many dicts at once.
PARQUET_GROUP_ROWS = 1 << 17
_DICTS_AT_ONCE = 1 << 10
SORTED_BATCH_ROWS = 1 << 16
# A scan with a limit reads so many blocks without reading ahead.
LIMITED_BLOCKS = 4

T = TypeVar("T")


class ArrowResult(ABC, Generic[Spec]):
    """Rows that are read when one of the methods is called, anew at each call."""

    def __init__(self, read: Read[Spec]) -> None:
        self._read: Read[Spec] = read

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what is planned, with its moments: unpickled, it reads the same rows.

        It has the storage options of the table, so keep it as secret as these.
        """
        return _unpickled, (type(self), self._read.plan)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"<kudulite {type(self).__name__}: {columns or 'no columns'}>"

    def _repr_html_(self) -> str:
        """Return the columns and the first rows as an HTML table, for notebooks."""
        return html_rows(self._first_rows())

    def _first_rows(self) -> pa.Table:
        rows, left = [], ROWS_SHOWN
        for batch in self.to_batches():
            rows.append(batch.slice(0, left))
            left -= rows[-1].num_rows
            if not left:
                break
        return pa.Table.from_batches(rows, self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        return self._read.schema

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty."""

    def to_arrow(self) -> pa.Table:
        """Return all rows as one table."""
        with Progress(f"read of table {self._read.store.name!r}", self._known_count()) as progress:
            return pa.Table.from_batches(progress.counted(self.to_batches(), len), self.schema)

    def _known_count(self) -> int | None:
        """Return the number of rows if metadata says it."""
        return None

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader that scans while it is read."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_pandas(self, dtype_backend: str | None = None, **options: Any) -> Any:
        """Return a pandas DataFrame, which can be written back without a loss.

        A column has numpy's type if that keeps all its cells. Whole numbers and booleans with NULL
        have a nullable type (`Int64`, `boolean`), and so have floats with a NaN, to tell NaN from
        NULL. Lists that numpy's types would change have Arrow's type. `dtype_backend` chooses for
        all columns, in pandas' words: "numpy_nullable", "pyarrow", or "numpy", which makes floats
        of whole numbers with NULL and NULL of NaN. `options` are those of pyarrow's
        `Table.to_pandas`; its `types_mapper` chooses all types. Raises OptionError.
        """
        return frame_of(self.to_arrow(), dtype_backend, options)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all rows as dicts.

        A moment outside the years 1 to 9999 is an int of microseconds since the epoch.
        """
        return python_rows(self.to_arrow())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows as dicts, as `to_pylist` gives them, while they are read."""
        for batch in self.to_batches():
            for start in range(0, batch.num_rows, _DICTS_AT_ONCE):
                yield from python_rows(batch.slice(start, _DICTS_AT_ONCE))

    def to_parquet(
        self, path: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
    ) -> int:
        """Write the rows to a Parquet file while they are read; return their number.

        `path` may be an address as in `connect`, of any store, with `storage_options` of its own.
        The file gets its name, and replaces one of that name, when it is complete and durable.
        Raises OptionError for a folder, for a place inside a table, and for a scan without columns;
        UsageError for another URL; StorageError.
        """
        if not len(self.schema):
            raise OptionError("a scan without columns has no Parquet file; use count()")
        address = parse_address(path, storage_options)
        target = address.path
        storage = environment_beside(self._read.store.environment, address.storage).storage
        _check_export(storage, address)
        with (
            Progress(f"export to {target.name}", self._known_count()) as progress,
            storage.open_replacing_sink(target) as sink,
        ):
            with pq.ParquetWriter(sink, self.schema) as writer:
                for rows in _row_groups(self.to_batches()):
                    writer.write_table(rows)
                    progress.add(rows.num_rows)
            sink.finish()
        return progress.done

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as an Arrow C stream, for DuckDB, Polars and others."""
        return self.to_reader().__arrow_c_stream__(requested_schema)


def _unpickled(kind: type[ArrowResult[Spec]], plan: ReadPlan[Spec]) -> ArrowResult[Spec]:
    """Return the result of a pickle. Raises ConflictError, TimestampError."""
    result = kind.__new__(kind)
    result._read = read_of_plan(plan)
    return result


def _row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows in tables of at least PARQUET_GROUP_ROWS, but for the last."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(part.num_rows for part in waiting) >= PARQUET_GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _check_export(storage: Storage, address: Address) -> None:
    """Raise OptionError unless a file may be written at an address."""
    target, root = address.path, address.storage.root
    for folder in (target, *target.parents):
        if folder.is_relative_to(root) and has_table_files(storage, folder):
            raise OptionError(
                f"{target} is a place inside the table {folder}, which has files of its own only;"
                " give a path outside it"
            )
    if storage.is_folder(target):
        raise OptionError(f"{target} is a folder; give the path of a file")


class RowScan(ArrowResult[ScanSpec]):
    """The rows that match, at one settled timestamp."""

    def __init__(self, store: TableStore, request: ReadRequest) -> None:
        super().__init__(plan_rows(store, request))

    @property
    def timestamp(self) -> Timestamp:
        """The HybridTime of the snapshot, inclusive."""
        return Timestamp(self._read.plan.timestamp)

    @property
    def columns(self) -> list[Column]:
        """The columns of the result, as the table had them when the scan was planned."""
        return self._read.columns

    @property
    def predicates(self) -> BoundPredicates:
        """The conditions, with the types of the columns."""
        return self._read.spec.predicates

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty, of at most a row group each."""
        return self._read.newest().stream(self._batches, self._read.newest)

    def _batches(self, read: Read[ScanSpec]) -> Iterator[pa.RecordBatch]:
        if read.plan.request.order_by:
            yield from self._sorted_batches(read)
            return
        schema = read.schema
        left = read.plan.request.limit
        for batch in row_batches(read, entries_to_scan(read.store, read.manifest, read.spec)):
            if left is not None:
                batch = batch.slice(0, left)
                left -= batch.num_rows
            if batch.num_rows:
                read.store.metrics.rows_scanned += batch.num_rows
                yield in_schema(batch, schema)
            if left is not None and left <= 0:
                return

    def _sorted_batches(self, read: Read[ScanSpec]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the order of columns, which are read beside those of the result."""
        request, names = read.plan.request, read.schema.names
        wanted = dict.fromkeys([*names, *(key.column for key in request.order)])
        plan = read.plan.of_columns(list(wanted), request.where)
        unsorted = replace(plan, request=replace(plan.request, order_by=(), limit=None))
        inner = read_of(read.store, read.manifest, unsorted)
        rows = sorted_batches(self._batches(inner), inner.schema, request.order, request.limit)
        yield from rows.select(names).to_batches(SORTED_BATCH_ROWS)

    def _known_count(self) -> int | None:
        request = self._read.plan.request
        if request.where or request.limit is not None:
            return None
        return sum(entry.live_row_count for entry in self._read.manifest.tablets)

    def count(self) -> int:
        """Return the number of rows; without predicates no column is read."""
        read = self._read.newest()
        try:
            return self._count(read)
        except StorageError as error:
            if not read.is_superseded(error):
                raise
        return self._count(self._read.newest())

    def _count(self, read: Read[ScanSpec]) -> int:
        store, spec = read.store, read.spec
        entries = list(entries_to_scan(store, read.manifest, spec))
        title = f"count of table {store.name!r}"
        with _of_table_that_is_there(store), Progress(title) as progress:

            def count(entry: TabletEntry) -> None:
                tablet = tablet_at(store, entry, spec.timestamp)
                progress.add(count_rows(store.storage, tablet, spec))

            store.storage.side_by_side(count, entries)
        total = progress.done
        limit = read.plan.request.limit
        return total if limit is None else min(total, limit)


def row_batches(read: Read[ScanSpec], entries: Iterable[TabletEntry]) -> Iterator[pa.RecordBatch]:
    """Return the rows of some tablets, in key order over all of them where the read asks for it."""
    spec = read.spec
    read.store.metrics.scans += 1
    tablets = _opened(read, entries)
    alone = 0 if spec.limit is None else LIMITED_BLOCKS
    at_once = read.store.storage.requests_at_once
    with _of_table_that_is_there(read.store):
        if not read.plan.request.ordered:
            reads = (block for tablet in tablets for block in block_reads(tablet, spec))
            yield from read_ahead(reads, alone, at_once)
            return
        with _Threads(at_once) as threads:
            run = threads.run_ahead if spec.limit is None else in_turn
            yield from read_ahead(ordered_reads(tablets, spec, run), alone)


def _opened(read: Read[ScanSpec], entries: Iterable[TabletEntry]) -> Iterator[Tablet]:
    """Yield tablets, as many opened together as the storage reads at once."""
    store, rest = read.store, iter(entries)
    spec = replace(read.spec, with_keys=read.plan.request.ordered)
    storage = store.storage
    while some := list(itertools.islice(rest, storage.requests_at_once)):
        opened = storage.side_by_side(lambda entry: tablet_at(store, entry, spec.timestamp), some)
        open_for_scan(storage, opened, spec)
        yield from opened


@contextmanager
def _of_table_that_is_there(store: TableStore) -> Iterator[None]:
    """Raise TableNotFoundError in the place of a StorageError for a file of a table that is gone.

    Also where another table has its name.
    """
    try:
        yield
    except StorageError as error:
        if error.errno == errno.ENOENT:
            store.newest()
        raise


class _Threads:
    """Threads that read for one consumer; each begins when a read needs it.

    There is one for each core, or for each of the reads that a storage has under way at once.
    """

    def __init__(self, requests_at_once: int = 1) -> None:
        self._waits = requests_at_once > 1
        self._count: int = max(READ_THREADS, requests_at_once)
        self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="kudulite-scan")
        self._ahead = 0

    @property
    def ahead_max(self) -> int:
        """How many reads are begun before the first of them is asked for."""
        return self._count + 2

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, kind: type | None, *_exc: object) -> None:
        # The garbage collector closes a reading that was left, perhaps in the midst of a thread's
        # start. A wait for another thread could not end there.
        self._pool.shutdown(wait=kind is not GeneratorExit, cancel_futures=True)

    def begin(self, read: Callable[[], T]) -> Future[T]:
        """Run a read in a thread. Raises OutOfMemoryError."""
        try:
            return self._pool.submit(read)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise OutOfMemoryError(
                f"cannot begin a thread to read ahead: {error}; allow the process more threads or"
                " memory, and read again"
            ) from error

    def run_ahead(self, reads: Iterable[RowsRead]) -> Iterator[ScannedRows]:
        """Run the reads of one of several streams, one of them before it is asked for.

        Where reads wait, the first one begins with the call, beside those of other streams.
        """
        rest = iter(reads)
        first = [self._begun(read) for read in itertools.islice(rest, 1)] if self._waits else []
        return self._results(first, rest)

    def _results(
        self, first: list[Callable[[], ScannedRows | None]], reads: Iterator[RowsRead]
    ) -> Iterator[ScannedRows]:
        begun = first[0] if first else None
        for read in itertools.chain(reads, (None,)):
            following = None if read is None else self._begun(read)
            if begun is not None and (rows := begun()) is not None:
                yield rows
            begun = following

    def _begun(self, read: RowsRead) -> Callable[[], ScannedRows | None]:
        """Begin a read if it is long and all streams together are not too far ahead."""
        is_short = read.row_count < CUT_ROWS_MAX and not self._waits
        if is_short or self._count == 1 or self._ahead >= self.ahead_max:
            return read.run
        self._ahead += 1
        future = self.begin(read.run)

        def result() -> ScannedRows | None:
            self._ahead -= 1
            return future.result()

        return result


class _Read(Protocol):
    """A part of a scan; any thread may run it."""

    @property
    def is_short(self) -> bool:
        """Whether another thread would not make it faster."""

    def run(self) -> pa.RecordBatch | None:
        """Return its rows, or None if there are none."""


def read_ahead(
    reads: Iterable[_Read], alone: int = 0, requests_at_once: int = 1
) -> Iterator[pa.RecordBatch]:
    """Run reads in threads, a few ahead of the consumer; yields in order.

    The first `alone` reads, and short ones before all others, run when the consumer asks for them.
    Short ones do not if the storage has several reads under way at once.
    """
    waiting, first = iter(reads), list[_Read]()
    for number, read in enumerate(waiting):
        if number >= alone and (first or requests_at_once > 1 or not read.is_short):
            first.append(read)
            if len(first) == 2:
                break
        elif (batch := read.run()) is not None:
            yield batch
    if len(first) < 2 or max(READ_THREADS, requests_at_once) == 1:
        for read in itertools.chain(first, waiting):
            batch = read.run()
            if batch is not None:
                yield batch
        return
    pending: deque[Future[pa.RecordBatch | None]] = deque()
    with _Threads(requests_at_once) as threads:
        for read in itertools.chain(first, waiting):
            pending.append(threads.begin(read.run))
            if (
                len(pending) >= threads.ahead_max
                and (done := pending.popleft().result()) is not None
            ):
                yield done
        while pending:
            if (done := pending.popleft().result()) is not None:
                yield done


class Changes(ArrowResult[DiffSpec]):
    """The changes of a table in one settled window; see `Table.changes`."""

    def __init__(self, store: TableStore, request: ReadRequest) -> None:
        super().__init__(plan_changes(store, request))

    @property
    def start(self) -> Timestamp:
        """The HybridTime after which the window begins."""
        return Timestamp(self._read.spec.start)

    @property
    def end(self) -> Timestamp:
        """The HybridTime of the window's end, inclusive; the start of the next window."""
        return Timestamp(self._read.spec.end)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches, none empty; each tablet's in key order."""
        return self._read.newest().stream(self._batches, self._read.newest)

    def _batches(self, read: Read[DiffSpec]) -> Iterator[pa.RecordBatch]:
        schema = self.schema
        for batch in change_batches(read, entries_to_diff(read.store, read.manifest, read.spec)):
            yield in_schema(batch, schema)

    def count(self) -> int:
        """Return the number of rows of the changes."""
        return sum(batch.num_rows for batch in self.to_batches())


def change_batches(
    read: Read[DiffSpec], groups: Iterable[Sequence[TabletEntry]]
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of groups of tablets; tablets of one group may hold the same keys."""
    store, spec = read.store, read.spec
    at_once = store.storage.requests_at_once
    with _of_table_that_is_there(store), _Threads(at_once) as threads:
        tablets = _opened_groups(read, groups)
        parts = (part for group in tablets for part in diff_reads(group, spec, threads.run_ahead))
        yield from read_ahead(parts, 0, at_once)


def _opened_groups(
    read: Read[DiffSpec], groups: Iterable[Sequence[TabletEntry]]
) -> Iterator[list[Tablet]]:
    """Yield the tablets of each group, as many groups opened together as are read at once."""
    storage, spec, rest = read.store.storage, read.spec, iter(groups)
    while some := list(itertools.islice(rest, storage.requests_at_once)):
        opened = storage.side_by_side(lambda group: open_tablets(read.store, group, spec), some)
        open_for_diff(storage, itertools.chain.from_iterable(opened), spec)
        yield from opened
