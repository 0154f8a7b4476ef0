"""Table: the whole interface of one table: writes, reads, history, tags and maintenance.

    table.upsert(batch)                      one of eight operations, all rows or none
    table.scan(where=[table["a"] == 1])      as Arrow, at one moment
    table.get(key)                           one row by its primary key

**Threads**: any number may use one `Table`; each write is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

import pyarrow as pa

from kudulite.chain.manifest import TableVersion
from kudulite.chain.partition import PartitionSchema
from kudulite.client.batch_operations import BatchOperations
from kudulite.client.row_operations import RowOperations
from kudulite.client.table_copy import copy_with_past, empty_copy
from kudulite.client.table_frame import TableFrame
from kudulite.errors import ColumnNotFoundError, UsageError
from kudulite.model.aliases import Columns, Key, Keys, Moment, Row, Where
from kudulite.model.condition import ColumnExpression
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.schema import Schema
from kudulite.reads.lookup import KeyLookup, row_history
from kudulite.reads.native_plan import (
    NATIVE_LIMITS,
    NativeFile,
    NativeLimits,
    NativePlan,
    plan_native,
)
from kudulite.reads.native_scan import Scan
from kudulite.reads.scan import Changes
from kudulite.reads.tokens import (
    ChangeToken,
    ScanToken,
    make_change_tokens,
    make_scan_tokens,
)
from kudulite.shown.html import ROWS_SHOWN, html_fields, html_rows, html_title
from kudulite.shown.progress import Progress
from kudulite.storage.address import StorageAddress, parse_address
from kudulite.table.environment import environment_at, environment_beside
from kudulite.table.memory_flush import flush_table
from kudulite.table.metrics import TableMetrics
from kudulite.table.present import listing, read_tablets
from kudulite.table.read_request import ReadRequest, plan_rows
from kudulite.table.snapshot import check_readable, choose_snapshot, moment_of, newest_change
from kudulite.table.table_names import move_table
from kudulite.table.table_store import TableStore
from kudulite.table.tags import delete_tag, make_tag, moment_or_version, newest_versions
from kudulite.upkeep.check import CheckReport, check_table
from kudulite.upkeep.garbage_collection import GRACE_SECONDS, STAGING_GRACE_SECONDS
from kudulite.upkeep.layout import TableLayout, tablet_layout
from kudulite.upkeep.maintenance import (
    MaintenanceResult,
    compact_table,
    maintain_table,
    maintain_tablets,
)
from kudulite.upkeep.purge import PurgeReport, purge_keys
from kudulite.upkeep.statistics import TableStatistics, live_row_count, table_statistics

# Methods that only tables of kudulite.kudu have, and what does the same here.
_OF_KUDU_PYTHON = {"scanner": "scan", "scan_token_builder": "scan_tokens"}


class Table(TableFrame, BatchOperations, RowOperations):
    """One table; made by `Client.table`, `Client.create_table` and `open_table`."""

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<kudulite table {self.name!r} at {self.path}>"

    def _repr_html_(self) -> str:
        """Return the table's columns, partitions and first rows as HTML, for notebooks."""
        fields = [
            ("path", self.path),
            ("rows", self.live_row_count),
            ("version", self.version),
            ("tablets", self.tablet_count),
            ("partitions", "; ".join(self.partition_schema.describe_all()) or "one tablet"),
        ]
        fields += [(name, text) for name in ("owner", "comment") if (text := getattr(self, name))]
        title = html_title(f"kudulite table {self.name}")
        columns = self._store.newest().schema._repr_html_()
        first_rows = html_rows(self.scan(ordered=True, limit=ROWS_SHOWN).to_arrow())
        return "".join((title, html_fields(fields), columns, first_rows))

    def __len__(self) -> int:
        """Return the number of rows now, from metadata; the same as `live_row_count`."""
        return self.live_row_count

    def __bool__(self) -> bool:
        """Return True, also for a table without rows."""
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address: unpickling opens the table again, as `open_table` does.

        It has the storage options that were given, so keep it as secret as these.
        """
        return _reopened, (self._store.storage.address, self.path)

    if not TYPE_CHECKING:  # a type checker reports unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            if name in _OF_KUDU_PYTHON:
                raise AttributeError(
                    f"a kudulite table has no {name}, a method of kudu-python's tables; use"
                    f" table.{_OF_KUDU_PYTHON[name]}(…), or open the table with kudulite.kudu"
                )
            return super().__getattribute__(name)  # which raises, also what a property raised

    # -- what it is

    @property
    def name(self) -> str:
        """The table's name."""
        return self._store.name

    @property
    def path(self) -> Path:
        """The table's folder."""
        return self._store.folder

    @property
    def version(self) -> int:
        """The newest version's number; 1 is the empty table."""
        return self._store.newest().version

    @property
    def schema(self) -> Schema:
        """Columns, key columns first."""
        return self._store.newest().schema

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of a scan of all columns."""
        return self._store.newest().schema.result_schema()

    @property
    def partition_schema(self) -> PartitionSchema:
        """How rows are spread over tablets."""
        return self._store.newest().partition

    @property
    def id(self) -> str:
        """The table's unique id: a table created later under the same name has another."""
        return self._store.newest().table_id

    @property
    def owner(self) -> str:
        """The name of the table's owner, empty if it has none; nothing is enforced by it."""
        return self._store.newest().owner or ""

    @property
    def comment(self) -> str:
        """The table's comment, empty if it has none."""
        return self._store.newest().comment or ""

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._store.newest().schema)

    @property
    def tablet_count(self) -> int:
        """Number of tablets."""
        return len(self._store.newest().tablets)

    @property
    def statistics(self) -> TableStatistics:
        """Figures of the newest version, and the work that maintenance would save reads."""
        return table_statistics(self._store)

    @property
    def metrics(self) -> TableMetrics:
        """The work that this process has done with the table since it began; see `TableMetrics`.

        `table.metrics.to_openmetrics()` is text for Prometheus.
        """
        cache = self._store.cache.statistics
        return replace(self._store.metrics, table=self.name, block_cache=cache)

    def plot_layout(self) -> TableLayout:
        """Return a drawing of the rowsets of each tablet over its keys, which a notebook shows.

        Bars over one another are rowsets that a lookup has to search and a compaction would merge.
        Rows in memory are counted and not drawn. Raises CorruptionError and StorageError.
        """
        tablets = read_tablets(self._store)[1]
        return TableLayout(
            tuple(
                tablet_layout(t.id, t.superblock.rowsets, t.memory_row_count, t.live_row_count)
                for t in tablets
            )
        )

    @property
    def live_row_count(self) -> int:
        """The number of rows now, from metadata; cheaper than `statistics`."""
        return live_row_count(self._store)

    @property
    def history_retention(self) -> int:
        """For how many seconds the past stays readable; `TableAlterer.set_history_retention`."""
        return self._store.newest().history_seconds

    @property
    def tablet_ids(self) -> list[str]:
        """The ids of the tablets, as `maintain` takes them."""
        return [entry.id for entry in self._store.newest().tablets]

    @overload
    def __getitem__(self, column: str | int) -> ColumnExpression: ...

    @overload
    def __getitem__(self, column: list[str]) -> Scan: ...

    def __getitem__(self, column: str | int | list[str]) -> ColumnExpression | Scan:
        """Return a column to compare, `table["host"] == "a"`, or a scan, `table[["id", "host"]]`.

        Raises ColumnNotFoundError.
        """
        if isinstance(column, list):
            return self.scan(column)
        schema = self.schema
        try:
            return ColumnExpression(schema[column].name)
        except ColumnNotFoundError:
            listed = ", ".join(schema.names)
            raise ColumnNotFoundError(
                f"table {self.name!r} has no column {column!r}; its columns are {listed}"
            ) from None

    # -- reading

    def scan(
        self,
        columns: Columns | None = None,
        where: Where = (),
        at: Moment | None = None,
        ordered: bool = False,
        limit: int | None = None,
        *,
        version: int | None = None,
        order_by: Columns = (),
    ) -> Scan:
        """Plan a scan at one moment: now, or `at` (datetime with a zone, ISO text, HybridTime).

        The moment is inclusive. A tagged one is `at=table.tags["name"]`. `version` is one that
        `versions` lists, and stands for its timestamp. The columns are those of the moment, under
        the names and types that they had; see `schema_at`. `where` is SQL text
        ("city = 'Rome' OR v != 1"), a condition ((table["v"] > 3) | (table["v"] == None)), a tuple
        (("v", ">", 3)), or several of them that must all hold. `ordered` gives key order over all
        tablets. `order_by` sorts by columns, SQL text ("v DESC, city"; NULL is the lowest value) or
        several; the rows are in memory then, with a `limit` no more than these. Raises OptionError,
        ColumnNotFoundError, SchemaError, NotFoundError for a version that is not listed, and
        TimestampError for a moment without a zone, before the creation of the table or the AHM, or
        ahead of the clock.
        """
        at = moment_or_version(self._store, at, version)
        request = ReadRequest.of(
            columns, where, at=at, ordered=ordered, limit=limit, order_by=order_by
        )
        return Scan(self._store, request)

    def head(self, n: int = ROWS_SHOWN) -> pa.Table:
        """Return `n` rows, or all if the table has fewer; which ones is not defined."""
        return self.scan(limit=n).to_arrow()

    def scan_tokens(
        self,
        columns: Columns | None = None,
        where: Where = (),
        at: Moment | None = None,
        ordered: bool = False,
        split_size_bytes: int | None = None,
    ) -> list[ScanToken]:
        """Plan a scan as picklable pieces, all at one moment; see `ScanToken`.

        Tablets larger than `split_size_bytes` (on disk, of the columns that are read) are cut into
        key ranges. `pack_tokens` puts small pieces together.
        """
        request = ReadRequest.of(columns, where, at=at, ordered=ordered)
        return make_scan_tokens(self._store, request, split_size_bytes)

    def tokens(
        self, request: ReadRequest, split_size_bytes: int | None = None
    ) -> list[ScanToken] | list[ChangeToken]:
        """Return the change tokens of a request that has a start, the scan tokens of any other."""
        if request.start is None:
            return make_scan_tokens(self._store, request, split_size_bytes)
        return make_change_tokens(self._store, request, split_size_bytes)

    def get(self, key: Key, at: Moment | None = None) -> Row | None:
        """Return one row by primary key (tuple, single value, or dict), or None."""
        return KeyLookup(self._store).get(key, at)

    def get_many(self, keys: Keys, at: Moment | None = None) -> pa.Table:
        """Return the rows whose keys exist, in the order of `keys`.

        `.to_pandas()` of the result is pyarrow's: with `types_mapper=pandas.ArrowDtype` it keeps
        every cell, as `Scan.to_pandas` does.
        """
        return KeyLookup(self._store).get_many(keys, at)

    def tablet_index(self, keys: Keys) -> pa.Array:
        """Return int32 per row of key columns: which tablet owns it, -1 where no range does."""
        return KeyLookup(self._store).tablet_index(keys)

    def native_plan(
        self,
        columns: Columns | None = None,
        where: Where = (),
        at: Moment | None = None,
        is_readable: Callable[[NativeFile], bool] = lambda file: True,
        limits: NativeLimits = NATIVE_LIMITS,
        with_overlays: bool = False,
    ) -> NativePlan:
        """Plan a read whose base data a Parquet reader of the caller reads itself.

        The reader has to apply `where` to the rows of the files; the plan only skips rowsets by it.
        Files that `is_readable` refuses are read through tokens. `with_overlays` leaves rows with
        some changed cells in their file; see `NativeFile.changed_cells`. Raises as `scan` does.
        """
        read = plan_rows(self._store, ReadRequest.of(columns, where, at=at))
        return plan_native(read, is_readable, limits, with_overlays=with_overlays)

    # -- the past

    def schema_at(self, at: Moment) -> Schema:
        """Return the columns that the table had at a moment, which a scan of it has.

        Raises TimestampError as `scan` does.
        """
        manifest = self._store.newest()
        timestamp = moment_of(self._store, manifest, at)
        check_readable(self._store, manifest, timestamp, at)
        return manifest.schema_at(timestamp)

    def current_timestamp(self) -> Timestamp:
        """Return the present, a settled HybridTime: it shows all commits so far, no later one."""
        return Timestamp(choose_snapshot(self._store, None))

    def newest_change(self) -> Timestamp:
        """Return when the table last changed, or was created, as a settled HybridTime.

        All changes up to this time are visible, and no write can add one later. Unlike
        `current_timestamp`, the result stays the same until somebody writes, and no lock is taken
        if nothing has changed.
        """
        changed = newest_change(self._store)
        return Timestamp(choose_snapshot(self._store, changed, has_looked=True))

    def changes(
        self,
        start: Moment,
        end: Moment | None = None,
        columns: Columns | None = None,
        where: Where = (),
        images: str = "after",
    ) -> Changes:
        """Return what changed in (start, end], one change of each key; `end` None is now.

        The moments are given as the `at` of a scan. A `start` of 0 is the creation of the table, so
        all rows are changes; it is refused once the AHM is later. Each row has `_change_type`
        (insert, update_postimage, delete); `_commit_version`, the HybridTime of the newest change
        of its key in the window, which `at` and `start` take; and `_commit_timestamp`, the wall
        time of that, which several commits of one microsecond share. With images="both" a row of
        type update_preimage precedes each update_postimage: the row at `start`. Rows both inserted
        and deleted inside the window are not returned. All rows of a key are returned if it meets
        `where` at the start or at the end of the window. The columns are those of the end; one that
        was added inside the window has its default in the rows of the start.

        Raises TimestampError, ColumnNotFoundError, SchemaError and OptionError.
        """
        request = ReadRequest.of(columns, where, at=end, start=start, images=images)
        return Changes(self._store, request)

    def change_tokens(
        self,
        start: Moment,
        end: Moment | None = None,
        columns: Columns | None = None,
        where: Where = (),
        images: str = "after",
        split_size_bytes: int | None = None,
    ) -> list[ChangeToken]:
        """Plan `changes` as picklable pieces, all of one window; see `ChangeToken`."""
        request = ReadRequest.of(columns, where, at=end, start=start, images=images)
        return make_change_tokens(self._store, request, split_size_bytes)

    def history(self, key: Key) -> pa.Table:
        """Return every version of one row that the retention still holds, the oldest first.

        Each version has `_change_type`, `_commit_version` and `_commit_timestamp` as in `changes`,
        and `_commit_writer`, who wrote it, null where `versions` does not list the write any more;
        a delete shows the row that was deleted. These columns of the oldest version are null if its
        time is no longer known. The result is empty if there was no such row. The columns are those
        of now: one that was added is null in versions that ended before, and `get` with `at` has
        dropped ones.
        """
        return row_history(self._store, key)

    def versions(self) -> list[TableVersion]:
        """Return the newest versions of the table, newest first: what made them, when, and who.

        These are the last 100 that users made, and the last 20 that maintenance made. Their
        timestamps descend, too; `scan(at=one.timestamp)` reads the rows of one, and
        `restore(one.timestamp)` brings them back. A batch of few rows is a commit in the table's
        log and has no number. Rows of a session are not listed; a later memory flush is.
        `pandas.DataFrame(table.versions())` is a frame of them.
        """
        return newest_versions(self._store, listing(self._store))

    @property
    def tags(self) -> dict[str, Timestamp]:
        """The HybridTime of each tag, oldest first; use it as `at=table.tags["name"]`."""
        tags = sorted(self._store.newest().tags.items(), key=lambda item: item[1])
        return {name: Timestamp(moment) for name, moment in tags}

    def tag(self, name: str, at: Moment | None = None) -> Timestamp:
        """Tag a moment, now or `at`; it and all later ones stay readable until `delete_tag`.

        Returns the HybridTime of the tag. Raises UsageError if the name is already used for another
        moment, TimestampError if the moment is before the ancient history mark or in the future.
        """
        return Timestamp(make_tag(self._store, name, at))

    def delete_tag(self, name: str) -> None:
        """Delete a tag, so that history older than the retention may be removed.

        Raises NotFoundError.
        """
        delete_tag(self._store, name)

    # -- upkeep

    def flush(self) -> int:
        """Write logged rows to DiskRowSets; return the number of tablets that had any.

        Rows are durable and visible without a flush. A flush frees memory and shortens the logs.
        """
        return len(flush_table(self._store))

    def compact(self) -> MaintenanceResult:
        """Compact the table completely, at any cost; the past stays readable.

        Afterwards the rowsets of a tablet do not overlap, and base data holds every update. Reads
        and writes continue meanwhile. `maintain` compacts only where it is worth the cost, and also
        removes files that are no longer needed. Raises LockTimeoutError if another maintenance run
        does not end, StorageError and CorruptionError.
        """
        return compact_table(self._store)

    def maintain(
        self,
        grace_seconds: float = GRACE_SECONDS,
        staging_grace_seconds: float = STAGING_GRACE_SECONDS,
        *,
        budget_bytes: int | None = None,
        tablet_ids: Sequence[str] | None = None,
    ) -> MaintenanceResult:
        """Flush, compact what is worth it, drop history behind the retention, collect garbage.

        It is safe at any time, beside readers, writers and other maintenance runs. It ends when no
        work is worth its cost, or when `budget_bytes` were rewritten. Versions of the last
        `grace_seconds` keep their files, so that reads under way on any machine can finish. The
        files of a write under way are kept as long as its process lives, and those of a pickled one
        until no task has done anything for `staging_grace_seconds`.

        With `tablet_ids`, only these tablets are maintained and no garbage is collected; use it to
        spread the work over machines. Raises UsageError for an unknown id, LockTimeoutError,
        StorageError and CorruptionError.
        """
        if tablet_ids is not None:
            return maintain_tablets(self._store, tablet_ids, budget_bytes=budget_bytes)
        return maintain_table(
            self._store,
            grace_seconds=grace_seconds,
            staging_grace_seconds=staging_grace_seconds,
            budget_bytes=budget_bytes,
        )

    def check(self) -> CheckReport:
        """Read all files of the newest version and check that they agree with each other.

        The report lists the problems: see `table.check().problems`, or call `.raise_if_bad()` to
        raise them as a CorruptionError. Nothing is changed. Memory is bounded by a row group.
        """
        return check_table(self._store)

    def purge(self, keys: Keys) -> PurgeReport:
        """Erase the rows of `keys` (as in `get_many`), live or deleted, with all their history.

        Afterwards no file of the table holds these rows: base data, deltas, the log and older
        versions are rewritten without them or removed at once. Other rows keep their history. Reads
        of an older version may fail with a StorageError; scan again then. Writes that are staged
        and not committed keep older files. The report names them: purge again after they have
        ended. Backups and copies of the folder are not changed.

        Raises SchemaError, LockTimeoutError, StorageError, CorruptionError and ConflictError.
        """
        return purge_keys(self._store, KeyLookup(self._store).keys_by_tablet(keys))

    def copy_to(
        self,
        path: str | PathLike[str],
        *,
        with_past: bool = True,
        where: Where = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> Timestamp:
        """Copy the table, as it is at one moment, to another folder; return the moment.

        The folder may be in a directory or on an object store, wherever the table is.
        The copy is an independent table. With its past, it can be read at every moment at which
        this one can be read. Without, it has the rows only, or those of them that meet `where` (as
        in `scan`). Writers wait briefly while the version to copy is made. Raises TableExistsError,
        UsageError for a condition on a copy with its past, CorruptionError and StorageError.
        """
        address = parse_address(path, storage_options)
        place = address.path
        environment = environment_beside(self._store.environment, address.storage)
        if with_past and where != ():
            raise UsageError(
                f"table {self.name!r}: a copy with its past has all rows; give with_past=False"
            )
        if with_past:
            return Timestamp(copy_with_past(self._store, place, environment))
        hidden, target, moment = empty_copy(self._store, place, environment)
        # An upsert may give the numbers of rows that an insert would number.
        write = Table(hidden).new_bulk_write("upsert").labelled("copy")
        with Progress(f"copy of table {self.name!r}", self.live_row_count):
            write.commit([write.stage(self.scan(where=where, at=moment).to_batches())])
        move_table(hidden, target)
        return Timestamp(moment)


def _reopened(address: StorageAddress, path: Path) -> Table:
    """Return the table of a pickle. Raises TableNotFoundError that says what is there."""
    store = TableStore(path, environment_at(address))
    store.newest()
    return Table(store)


def store_of(table: Table) -> TableStore:
    """Return the store below a table, for layers above the client; users have no need of it."""
    return table._store
