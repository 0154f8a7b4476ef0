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
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

import kudulite
from kudulite.errors import ConflictError, OptionError, TableNotFoundError, TimestampError
from kudulite_spark.python_worker import end_work
from kudulite_spark.reader import ScanPlan, TabletPartition, TabletReader, fitted_batches, packed
from kudulite_spark.spark_versions import (
    HAS_READ_LIMITS,
    SupportsTriggerAvailableNow,
    read_limit,
)
from kudulite_spark.stream_bounds import (
    NOW,
    CommitCounts,
    Offset,
    OffsetJson,
    StreamOffset,
    StreamStart,
    changes_end,
    count_commits,
    is_in_snapshot,
    parse_offset,
    snapshot_end,
    snapshot_tokens,
)
from kudulite_spark.types import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from kudulite import ScanToken, Table, Token


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a plan batch by batch; `row_count_max` limits a batch, None does not."""

    def __init__(
        self, plan: ScanPlan, start: StreamStart, row_count_max: int | None = None
    ) -> None:
        if row_count_max is not None and not HAS_READ_LIMITS:
            raise OptionError(
                f"table {plan.path!r}: option 'maxRowsPerTrigger' needs PySpark 4.2 or newer, which"
                " asks a source for batches of a size; leave it out"
            )
        self._plan = plan
        self._start = start
        self._row_count_max = row_count_max
        self._target: int | None = None  # of Trigger.AvailableNow
        self._counts: CommitCounts | None = None  # of changes that have not been read
        self._newest: StreamOffset | None = None

    # -- where batches end

    def initialOffset(self) -> OffsetJson:
        """Return the start of a new query: always the same, because Spark does not log it."""
        return self._start.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of `maxRowsPerTrigger`."""
        return read_limit(self._row_count_max)

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the newest change: the query ends with it."""
        with self._explained():
            self._target = self._table().newest_change()

    def latestOffset(
        self, start: OffsetJson | None = None, limit: ReadLimit | None = None
    ) -> OffsetJson:
        """Return the end of the batch that begins at `start`; `start` itself if nothing is new."""
        offset = None if start is None else parse_offset(start)
        with self._explained():
            # The limit is the rows that Spark allows a batch to have.
            end = self._end(self._table(offset), offset, getattr(limit, "max_rows", None))
        found = offset if end == offset else replace(end, column_ids=self._column_ids)
        return found.to_json()

    def reportLatestOffset(self) -> OffsetJson | None:
        """Return the newest change seen, for the progress of the query."""
        return None if self._newest is None else self._newest.to_json()

    def _end(self, table: Table, offset: Offset | None, row_count: int | None) -> StreamOffset:
        newest = table.newest_change() if self._target is None else self._target
        self._newest = StreamOffset(table.id, newest)
        if offset is None or offset == StreamStart(NOW):
            return self._newest
        request = self._plan.request
        if is_in_snapshot(offset):
            at = offset.moment if isinstance(offset, StreamOffset) else newest
            if row_count is None:
                return StreamOffset(table.id, at)
            row = snapshot_end(table, at, offset.row, row_count, request)
            return StreamOffset(table.id, at, row)
        after = int(offset.moment)
        if newest <= after:
            return StreamOffset(table.id, after)
        table.changes(after, newest, columns=[])  # raises if history is missing
        if row_count is None:
            return self._newest
        count = partial(count_commits, table, request=request)
        if self._counts is None or not self._counts.start <= after < self._counts.end:
            self._counts = count(after, newest)
        self._counts = self._counts.after(after)
        return StreamOffset(table.id, changes_end(self._counts, row_count, count))

    # -- reading a batch

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[TabletPartition]:
        """Return the tablets and key ranges of a batch, packed by size."""
        first, last = parse_offset(start), parse_offset(end)
        if first == last or first == StreamStart(NOW) or isinstance(last, StreamStart):
            return []
        with self._explained():
            table = self._table(first, last)
            if is_in_snapshot(first):
                rows = self._plan.at(last.moment).request

                def tokens(size: int) -> list[ScanToken]:
                    found = cast(list[kudulite.ScanToken], table.tokens(rows, size))
                    return snapshot_tokens(found, first.row, last.row)

                return packed(self._plan.split_size_bytes, tokens)
            after = int(first.moment)
            # A start in the future: batches are empty until then.
            if after >= last.moment:
                return []
            return TabletReader(self._plan.at(last.moment, after)).partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, TabletPartition):
            return
        plan = self._plan
        with self._explained():
            for content in partition.tokens:
                batches = self._batches(kudulite.Token.from_bytes(content))
                yield from fitted_batches(batches, plan.arrow_schema, plan.own_names)
        end_work()

    def _batches(self, token: Token[Any]) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        if isinstance(token, kudulite.ScanToken):
            return _as_inserts(token.open(), plan, token.timestamp)
        if CHANGE_TYPE in plan.arrow_schema.names:
            return token.open()
        return _without_deletes(token.open(), plan.path)

    # -- checks of the table

    @cached_property
    def _column_ids(self) -> dict[str, int]:
        """The ids of the columns that the query reads or compares, by name."""
        request = self._plan.request
        assert request.schema is not None and request.columns is not None, "as scan_plan makes it"
        compared = [name for condition in request.where for name in condition.columns]
        names = dict.fromkeys((*request.columns, *compared))
        return {name: request.schema.column(name).id for name in names}

    def _check_columns(self, offset: StreamOffset) -> None:
        """Raise ConflictError if a name means another column than when the offset was logged."""
        for name, column_id in self._column_ids.items():
            if offset.column_ids.get(name, column_id) != column_id:
                raise ConflictError(
                    f"table {self._plan.path!r}: the checkpoint is of a query that read column"
                    f" {name!r} of id {offset.column_ids[name]}, and {name!r} is the column of id"
                    f" {column_id} now: columns were dropped or renamed; start the query with a"
                    " new checkpoint, or read the columns under the names that they have now"
                )

    def _table(self, *offsets: Offset | None) -> Table:
        """Open the table. Raises ConflictError if an offset is of another one, or other columns."""
        table = kudulite.open_table(self._plan.path, storage_options=self._plan.storage_options)
        for offset in offsets:
            if isinstance(offset, StreamOffset) and offset.table_id != table.id:
                raise ConflictError(
                    f"table {self._plan.path!r} was deleted and created again, or the checkpoint is"
                    f" of another stream: it is of table {offset.table_id}, found {table.id}; start"
                    " the query with a new checkpoint"
                )
            if isinstance(offset, StreamOffset):
                self._check_columns(offset)
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


def _as_inserts(
    batches: Iterator[pa.RecordBatch], plan: ScanPlan, timestamp: int
) -> Iterator[pa.RecordBatch]:
    """Add the columns of changes to rows of a snapshot: each is an insert at its moment."""
    names = [plan.own_names.get(name, name) for name in plan.arrow_schema.names]
    for batch in batches:
        columns = []
        for own, wanted in zip(names, plan.arrow_schema, strict=True):
            if wanted.name == CHANGE_TYPE:
                columns.append(pa.repeat(pa.scalar("insert"), batch.num_rows))
            elif wanted.name == COMMIT_VERSION:
                columns.append(pa.repeat(pa.scalar(timestamp, pa.int64()), batch.num_rows))
            elif wanted.name == COMMIT_TIMESTAMP:
                wall = pa.scalar(kudulite.Timestamp(timestamp).to_datetime(), wanted.type)
                columns.append(pa.repeat(wall, batch.num_rows))
            else:
                columns.append(batch.column(own))
        yield pa.RecordBatch.from_arrays(columns, names=names)


def _without_deletes(batches: Iterator[pa.RecordBatch], path: str) -> Iterator[pa.RecordBatch]:
    """Pass on inserts and postimages. Raises OptionError for a delete, which rows cannot show."""
    for batch in batches:
        if pc.any(pc.equal(batch.column(CHANGE_TYPE), "delete")).as_py():
            raise OptionError(
                f"table {path!r}: a row was deleted, and the stream has no column {CHANGE_TYPE!r}"
                " to show it; give option('startTimestamp', 'snapshot'), 'now' or a moment, which"
                " add the columns of changes to a stream, and a new checkpoint"
            )
        yield batch.filter(pc.not_equal(batch.column(CHANGE_TYPE), "update_preimage"))
