"""`spark.readStream`: a table's changes, from a snapshot, from a moment, or from now on.

    driver, one process per query   latestOffset, partitions      an instance with state
    tasks                           read                          an instance made anew

    StreamStart ──snapshot──▶ rows of the snapshot at T, as inserts ──▶ changes (T, T1] ──▶ …
                ──moment────▶ changes (moment, T1] ──▶ changes (T1, T2] ──▶ …
                ──now───────▶ (nothing, T] ──▶ changes (T, T1] ──▶ …

The two offsets of a batch alone determine its rows (`stream_bounds`), so reading it again gives the
same rows after any flush or compaction. A batch ends at the newest change, made a safe timestamp.
Without writes to the table there are no batches.

Before PySpark 4.2 Spark does not say where a batch starts when it asks for its end, nor how many
rows it may have. Batches are not limited there, and `maxRowsPerTrigger` is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from kudulite import Predicate, ScanToken, Table, Token, open_table
from kudulite.errors import ConflictError, OptionError, TableNotFoundError, TimestampError
from kudulite_spark.reader import ScanPlan, TabletReader, fitted_batches
from kudulite_spark.stream_bounds import (
    NOW,
    SNAPSHOT,
    CommitCounts,
    OffsetJson,
    RowPlace,
    StreamOffset,
    StreamStart,
    changes_end,
    count_commits,
    parse_offset,
    snapshot_end,
    snapshot_tokens,
)
from kudulite_spark.types import BEFORE, CHANGE_COLUMNS, CHANGE_TYPE, COMMIT_TIMESTAMP

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # before PySpark 4.2
    HAS_READ_LIMITS = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Empty: this PySpark has no such interface."""


@dataclass(frozen=True)
class StreamPlan:
    """The read of a stream; `row_count_max` limits a batch, None does not."""

    path: str
    arrow_schema: pa.Schema  # of the batches to yield
    own_names: Mapping[str, str]  # the table's names of columns that it has in another case
    start: StreamStart
    predicates: tuple[Predicate, ...] = ()
    split_size_bytes: int | None = None
    row_count_max: int | None = None

    def window(self, after: int, until: int) -> ScanPlan:
        """Return the plan of the changes in (after, until]."""
        return self._scan_plan(self.arrow_schema, until, after)

    def snapshot(self, timestamp: int) -> ScanPlan:
        """Return the plan of the rows at a moment."""
        own = [field for field in self.arrow_schema if field.name not in CHANGE_COLUMNS]
        return self._scan_plan(pa.schema(own), timestamp, None)

    def _scan_plan(self, schema: pa.Schema, timestamp: int, start: int | None) -> ScanPlan:
        return ScanPlan.of(
            self.path,
            schema,
            self.own_names,
            timestamp=timestamp,
            start=start,
            predicates=self.predicates,
            split_size_bytes=self.split_size_bytes,
        )


@dataclass(frozen=True)
class StreamPartition(InputPartition):
    """The work of one task: scan tokens of the snapshot at a moment, else change tokens."""

    tokens: tuple[bytes, ...]
    snapshot_timestamp: int | None
    value: None = field(default=None, repr=False)  # Spark's base class has it


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a plan batch by batch."""

    def __init__(self, plan: StreamPlan) -> None:
        if plan.row_count_max is not None and not HAS_READ_LIMITS:
            raise OptionError(
                f"table {plan.path!r}: option 'maxRowsPerTrigger' needs PySpark 4.2 or newer, which"
                " asks a source for batches of a size; leave it out"
            )
        self._plan = plan
        self._target: int | None = None  # of Trigger.AvailableNow
        self._counts: CommitCounts | None = None  # of changes that have not been read
        self._newest: StreamOffset | None = None

    # -- where batches end

    def initialOffset(self) -> OffsetJson:
        """Return the start of a new query: always the same, because Spark does not log it."""
        return self._plan.start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of `maxRowsPerTrigger`."""
        count = self._plan.row_count_max
        return ReadAllAvailable() if count is None else ReadMaxRows(count)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the newest change: the query ends with it."""
        with self._explained():
            self._target = self._table(None).newest_change()

    def latestOffset(
        self, start: OffsetJson | None = None, limit: ReadLimit | None = None
    ) -> OffsetJson:
        """Return the end of the batch that begins at `start`; `start` itself if nothing is new."""
        offset = None if start is None else parse_offset(start)
        with self._explained():
            table = self._table(offset)
            end = self._end(table, offset, _row_count_of(limit))
        return end.to_json()

    def reportLatestOffset(self) -> OffsetJson | None:
        """Return the newest change seen, for the progress of the query."""
        return None if self._newest is None else self._newest.to_json()

    def _end(
        self, table: Table, offset: StreamStart | StreamOffset | None, row_count: int | None
    ) -> StreamOffset:
        newest = table.newest_change() if self._target is None else self._target
        self._newest = StreamOffset(table.id, newest)
        if offset is None or offset == StreamStart(NOW):
            return self._newest
        if offset == StreamStart(SNAPSHOT):
            return self._snapshot_end(table, newest, None, row_count)
        if isinstance(offset, StreamOffset) and offset.row is not None:
            return self._snapshot_end(table, offset.timestamp, offset.row, row_count)
        after = _moment_of(offset)
        if newest <= after:
            return StreamOffset(table.id, after)
        return StreamOffset(table.id, self._changes_end(table, after, newest, row_count))

    def _snapshot_end(
        self, table: Table, timestamp: int, first: RowPlace | None, row_count: int | None
    ) -> StreamOffset:
        if row_count is None:
            return StreamOffset(table.id, timestamp)
        row = snapshot_end(table, timestamp, first, row_count, self._plan.predicates)
        return StreamOffset(table.id, timestamp, row)

    def _changes_end(self, table: Table, after: int, newest: int, row_count: int | None) -> int:
        where = self._plan.predicates
        table.changes(after, newest, columns=[])  # raises if history is missing
        if row_count is None:
            return newest
        known = self._counts
        if known is None or not known.start <= after < known.end:
            known = count_commits(table, after, newest, where)
        self._counts = known.after(after)
        return changes_end(
            self._counts, row_count, lambda start, end: count_commits(table, start, end, where)
        )

    # -- reading a batch

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[StreamPartition]:
        """Return the tablets and key ranges of a batch, packed by size."""
        first, last = parse_offset(start), parse_offset(end)
        if first == last or first == StreamStart(NOW) or isinstance(last, StreamStart):
            return []
        with self._explained():
            self._table(first)
            self._table(last)
            if first == StreamStart(SNAPSHOT):
                return self._snapshot_partitions(last.timestamp, None, last.row)
            if isinstance(first, StreamOffset) and first.row is not None:
                return self._snapshot_partitions(last.timestamp, first.row, last.row)
            after = _moment_of(first)
            # A start in the future: batches are empty until then.
            return self._change_partitions(after, last.timestamp) if after < last.timestamp else []

    def _change_partitions(self, after: int, until: int) -> list[StreamPartition]:
        packed = TabletReader(self._plan.window(after, until)).partitions()
        return [StreamPartition(partition.tokens, None) for partition in packed]

    def _snapshot_partitions(
        self, timestamp: int, first: RowPlace | None, end: RowPlace | None
    ) -> list[StreamPartition]:
        packed = SnapshotPartReader(self._plan.snapshot(timestamp), first, end).partitions()
        return [StreamPartition(partition.tokens, timestamp) for partition in packed]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, StreamPartition):
            return
        with self._explained():
            for token in partition.tokens:
                batches = self._token_batches(token, partition.snapshot_timestamp)
                yield from fitted_batches(batches, self._plan.arrow_schema, self._plan.own_names)

    def _token_batches(
        self, token: bytes, snapshot_timestamp: int | None
    ) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        batches = Token.from_bytes(token).open()
        if snapshot_timestamp is not None:
            return _as_inserts(batches, plan, snapshot_timestamp)
        if CHANGE_TYPE in plan.arrow_schema.names:
            return batches
        return _without_deletes(batches, plan.path)

    # -- checks of the table

    def _table(self, offset: StreamStart | StreamOffset | None) -> Table:
        """Open the table. Raises ConflictError if the offset is of another table."""
        table = open_table(self._plan.path)
        if isinstance(offset, StreamOffset) and offset.table_id != table.id:
            raise ConflictError(
                f"table {self._plan.path!r} was deleted and created again, or the checkpoint is of"
                f" another stream: it is of table {offset.table_id}, found {table.id}; start the"
                " query with a new checkpoint"
            )
        return table

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except TimestampError as error:
            raise TimestampError(
                f"{error}. Some changes that the stream has not read no longer exist: start the"
                " query with a new checkpoint, which begins with a snapshot. Raise the retention"
                " above the longest time that a stream may be down with"
                " client.new_table_alterer(table).set_history_retention(seconds)"
            ) from error
        except TableNotFoundError as error:
            raise TableNotFoundError(
                f"{error}. The stream's table was deleted, renamed or moved; stop the query"
            ) from error


class SnapshotPartReader(TabletReader):
    """Plans the rows of a snapshot between two places."""

    def __init__(self, plan: ScanPlan, first: RowPlace | None, end: RowPlace | None) -> None:
        super().__init__(plan)
        self._first, self._end = first, end

    def _tokens(self, table: Table, split_size_bytes: int) -> Sequence[ScanToken]:
        tokens = super()._tokens(table, split_size_bytes)
        rows = [token for token in tokens if isinstance(token, ScanToken)]
        return snapshot_tokens(rows, self._first, self._end)


def _moment_of(offset: StreamStart | StreamOffset) -> int:
    moment = offset.timestamp if isinstance(offset, StreamOffset) else offset.moment
    assert isinstance(moment, int)
    return moment


def _row_count_of(limit: ReadLimit | None) -> int | None:
    """Return the rows that Spark allows a batch to have."""
    return getattr(limit, "max_rows", None)


def _as_inserts(
    batches: Iterator[pa.RecordBatch], plan: StreamPlan, timestamp: int
) -> Iterator[pa.RecordBatch]:
    """Add the columns of changes to rows of a snapshot: each is an insert at its moment."""
    names = [plan.own_names.get(name, name) for name in plan.arrow_schema.names]
    for batch in batches:
        columns = []
        for own, wanted in zip(names, plan.arrow_schema, strict=True):
            if wanted.name == CHANGE_TYPE:
                columns.append(pa.repeat(pa.scalar("insert"), batch.num_rows))
            elif wanted.name == COMMIT_TIMESTAMP:
                columns.append(pa.repeat(pa.scalar(timestamp, pa.int64()), batch.num_rows))
            elif wanted.name == BEFORE:
                columns.append(pa.nulls(batch.num_rows, wanted.type))
            else:
                columns.append(batch.column(own))
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _without_deletes(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Pass on inserts and updates. Raises OptionError for a delete, which rows cannot show."""
    for batch in batches:
        if pc.any(pc.equal(batch.column(CHANGE_TYPE), "delete")).as_py():
            raise OptionError(
                f"table {path!r}: a row was deleted, and the stream has no column {CHANGE_TYPE!r}"
                " to show it; give option('startTimestamp', 'snapshot'), 'now' or a moment, which"
                " add the columns of changes to a stream, and a new checkpoint"
            )
        yield batch
