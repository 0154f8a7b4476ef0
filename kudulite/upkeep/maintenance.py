"""Maintenance of a table: which operation runs next.

    pass       score all tablets → take the best one's maintenance lock → score again → run → …
               until nothing is worth doing or the byte budget is used
    whole run  flush → pass → forget ancient dropped ranges → collect garbage

A tablet has at most one maintainer among all processes: a lock file that readers and writers never
take. A pass skips tablets that another process maintains. Correctness does not depend on the lock:
two operations on the same rowsets only waste the work of one. An operation that could not be
published because a writer was faster is not tried again in the same pass.

**Threads**: any; a pass belongs to one thread.

**Source**: Kudu util/maintenance_manager.cc.
"""

import errno
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from numbers import Real

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.errors import LockTimeoutError, StorageError, UsageError
from kudulite.shown.progress import Progress
from kudulite.storage.names import MAINTENANCE_LOCK_NAME
from kudulite.table.memory_flush import flush_table
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_store import TableStore
from kudulite.tablet.compaction_policy import BUDGET_BYTES
from kudulite.tablet.maintenance_policy import (
    MaintenanceOperation,
    ScoredOperation,
    full_compaction,
    scored_operations,
)
from kudulite.tablet.superblock import Superblock
from kudulite.upkeep.alter import forget_alterations
from kudulite.upkeep.compaction import OperationResult, run_operation
from kudulite.upkeep.garbage_collection import (
    GRACE_SECONDS,
    STAGING_GRACE_SECONDS,
    GarbageResult,
    collect_garbage,
)

# A tablet that is written to all the time must not keep a pass from ending.
OPERATIONS_PER_TABLET_MAX = 100
_FULL_COMPACTION_ROUNDS_MAX = 8

Run = Callable[[TableStore, str, MaintenanceOperation], OperationResult | None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PerformedOperation:
    """One operation on a tablet, and its outcome."""

    tablet_id: str
    operation: MaintenanceOperation
    result: OperationResult


@dataclass(frozen=True)
class MaintenanceResult:
    """The outcome of maintenance: flushed tablets, operations in order, collected garbage.

    `busy_tablet_ids` were left to another maintainer, `dropped_range_count` is the number
    of dropped ranges whose past became ancient and was removed.
    """

    flushed_tablet_count: int = 0
    operations: tuple[PerformedOperation, ...] = ()
    busy_tablet_ids: tuple[str, ...] = ()
    dropped_range_count: int = 0
    garbage: GarbageResult = field(default_factory=GarbageResult)

    @property
    def bytes_written(self) -> int:
        """The bytes of files that operations wrote."""
        return sum(done.result.bytes_written for done in self.operations)


def maintain_table(
    store: TableStore,
    *,
    grace_seconds: float = GRACE_SECONDS,
    staging_grace_seconds: float = STAGING_GRACE_SECONDS,
    budget_bytes: int | None = None,
    run: Run = run_operation,
) -> MaintenanceResult:
    """Flush, do all that is worth doing within `budget_bytes` of files, and collect garbage.

    Raises UsageError for a grace time that is none, LockTimeoutError, StorageError,
    CorruptionError; what was published until then stays. Garbage is collected also where the disk
    is full, so that the next maintenance has more space.
    """
    _check_grace(store, "grace_seconds", grace_seconds)
    _check_grace(store, "staging_grace_seconds", staging_grace_seconds)
    with Progress(f"maintenance of table {store.name!r}"):
        tablet_ids = [entry.id for entry in store.newest().tablets]
        try:
            # A tablet that is dropped meanwhile is skipped.
            done = _Pass(store, tablet_ids, budget_bytes, run).run_to_end(is_flushing=True)
        except StorageError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                collect_garbage(store, grace_seconds, staging_grace_seconds)
            raise
        done = replace(done, dropped_range_count=forget_alterations(store))
        with Progress("garbage collection"):
            garbage = collect_garbage(store, grace_seconds, staging_grace_seconds)
    return replace(done, garbage=garbage)


def next_operations(store: TableStore) -> list[tuple[str, ScoredOperation]]:
    """Return the operation that maintenance would begin with in each tablet, the best first.

    Tablets that need none are left out, and nothing is run. Rows in memory, which maintenance
    flushes first, are not looked at. Raises StorageError, CorruptionError.
    """
    tablet_ids = [entry.id for entry in store.newest().tablets]
    look = _Pass(store, tablet_ids, None, run_operation)
    found = [(tablet_id, look.candidates(tablet_id)) for tablet_id in tablet_ids]
    best = [(tablet_id, operations[0]) for tablet_id, operations in found if operations]
    return sorted(best, key=lambda each: each[1].rank, reverse=True)


def _check_grace(store: TableStore, name: str, seconds: object) -> None:
    if not isinstance(seconds, Real) or not float(seconds) >= 0:  # as NaN is not
        raise UsageError(
            f"table {store.name!r}: {name}={seconds!r}: expected a number of seconds, 0 or more"
        )


def maintain_tablets(
    store: TableStore,
    tablet_ids: Collection[str],
    *,
    is_flushing: bool = True,
    budget_bytes: int | None = None,
    run: Run = run_operation,
) -> MaintenanceResult:
    """Flush some tablets and do all that is worth doing there; no garbage is collected.

    Without `is_flushing`, memory is left to the flush policy. Raises UsageError for an
    unknown tablet, and as `maintain_table`.
    """
    known = [entry.id for entry in store.newest().tablets]
    for tablet_id in tablet_ids:
        if tablet_id not in known:
            raise UsageError(
                f"table {store.name!r} has no tablet {tablet_id!r}; its tablets:"
                f" {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
            )
    maintenance = _Pass(store, list(tablet_ids), budget_bytes, run)
    with Progress(f"maintenance of table {store.name!r}"):
        return maintenance.run_to_end(is_flushing=is_flushing)


def compact_table(
    store: TableStore,
    *,
    run: Run = run_operation,
) -> MaintenanceResult:
    """Flush, and bring each tablet to its best shape at any cost; see `full_compaction`.

    Waits for another maintainer of a tablet as long as for any lock. Raises as `maintain_table`.
    """
    flushed_count = len(flush_table(store))
    compaction = _Pass(store, [], None, run)
    seconds = store.environment.lock_timeout_seconds
    for entry in store.newest().tablets:
        with (
            Progress(f"compaction of table {store.name!r}"),
            maintenance_lock(store, entry.id, seconds) as is_had,
        ):
            if not is_had:
                raise LockTimeoutError(
                    f"table {store.name!r}: tablet {entry.id} is being maintained by another"
                    " process or thread; try again later"
                )
            compaction.compact(entry.id)
    return MaintenanceResult(flushed_count, tuple(compaction.performed))


@contextmanager
def maintenance_lock(
    store: TableStore, tablet_id: str, timeout_seconds: float = 0.0
) -> Iterator[bool]:
    """Be the tablet's only maintainer; False where another one is known to be."""
    path = store.tablet_folder(tablet_id) / MAINTENANCE_LOCK_NAME
    store.storage.check_folder(path.parent)
    with ExitStack() as stack:
        is_had = False
        with suppress(LockTimeoutError):
            stack.enter_context(store.storage.lease(path, timeout_seconds, "maintenance"))
            is_had = True
        yield is_had


# The rank of a tablet's best operation, negated, and the tablet's index in the pass.
_Place = tuple[tuple[int, float], int]


@dataclass
class _Pass:
    """One pass over some tablets."""

    store: TableStore
    tablet_ids: list[str]
    budget_bytes: int | None
    run: Run
    performed: list[PerformedOperation] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    _refused: set[tuple[str, MaintenanceOperation]] = field(default_factory=set)
    _tried: Counter[str] = field(default_factory=Counter)
    _waiting: list[_Place] = field(default_factory=list)  # a heap: the best tablet first
    # By tablet: for which superblock and budget they were found, and what was worth doing.
    _known: dict[str, tuple[tuple[str, int], list[ScoredOperation]]] = field(default_factory=dict)

    def run_to_end(self, *, is_flushing: bool) -> MaintenanceResult:
        """Flush if asked to, then run one operation after the other until none is worth it."""
        flushed_count = 0
        if is_flushing:
            flushed_count = len(flush_table(self.store, self.tablet_ids))
        while (tablet_id := self._best_tablet()) is not None:
            with maintenance_lock(self.store, tablet_id) as is_had:
                if not is_had:
                    self.busy.add(tablet_id)
                    continue
                # Score again: another maintainer may have been at work before the lock was taken.
                found = self.candidates(tablet_id)
                if found:
                    self._run_one(tablet_id, found[0])
        busy = tuple(sorted(self.busy))
        return MaintenanceResult(flushed_count, tuple(self.performed), busy)

    def compact(self, tablet_id: str) -> None:
        """Bring a tablet to its best shape; the caller is its only maintainer."""
        for _ in range(_FULL_COMPACTION_ROUNDS_MAX):
            manifest = self.store.newest()
            entry = manifest.entry(tablet_id)
            if entry is None:
                return
            plan = full_compaction(*self._needs(manifest, entry))
            done = [self._perform(tablet_id, operation) for operation in plan]
            if not any(done):
                return

    def _needs(self, manifest: Manifest, entry: TabletEntry) -> tuple[Superblock, int, set[int]]:
        """Return a tablet's superblock, the ancient history mark, and the ids of its columns."""
        mark = ancient_history_mark(self.store, manifest)
        column_ids = {column.id for column in manifest.stored_schema.columns}
        return self.store.tablet(entry).superblock, mark, column_ids

    def _perform(self, tablet_id: str, operation: MaintenanceOperation) -> bool:
        """Run one operation; False where it had nothing to do or a writer was faster."""
        begin = time.monotonic()
        with Progress(f"{operation.label} in tablet {tablet_id}"):
            result = self.run(self.store, tablet_id, operation)
        if result is not None:
            self.performed.append(PerformedOperation(tablet_id, operation, result))
            metrics, seconds = self.store.metrics, time.monotonic() - begin
            metrics.compactions += 1
            metrics.compaction_seconds += seconds
            metrics.compaction_bytes_written += result.bytes_written
            more = (
                f"wrote {result.bytes_written} bytes; rowsets {result.rowset_count_before} ->"
                f" {result.rowset_count_after}, bytes {result.bytes_before} ->"
                f" {result.bytes_after}, version {result.version}"
            )
            written, label = result.bytes_written, operation.label
            self.store.log_operation(label, [tablet_id], seconds, written, more)
        return result is not None

    def _best_tablet(self) -> str | None:
        """Return the tablet with the best operation, None if none is worth it.

        A tablet is scored again when its turn comes, and all of them when none is left.
        """
        for is_last in (False, True):
            while self._waiting:
                place = self._place(heappop(self._waiting)[1])
                if place is None:
                    continue
                heappush(self._waiting, place)
                if self._waiting[0] == place:
                    return self.tablet_ids[place[1]]
            if not is_last:
                places = map(self._place, range(len(self.tablet_ids)))
                self._waiting = sorted(place for place in places if place is not None)
        return None

    def _place(self, number: int) -> _Place | None:
        """Return a tablet's place among those that wait, None if it needs nothing."""
        found = self.candidates(self.tablet_ids[number])
        freed_bytes, score = found[0].rank if found else (0, 0.0)
        return ((-freed_bytes, -score), number) if (freed_bytes, score) > (0, 0.0) else None

    def candidates(self, tablet_id: str) -> list[ScoredOperation]:
        """Return what is worth doing to a tablet and was not refused, the best first."""
        if tablet_id in self.busy or self._tried[tablet_id] >= OPERATIONS_PER_TABLET_MAX:
            return []
        manifest = self.store.newest()
        entry = manifest.entry(tablet_id)
        if entry is None:
            return []
        budget = BUDGET_BYTES if self.budget_bytes is None else max(0, self.budget_bytes)
        key = (entry.superblock.name, min(BUDGET_BYTES, budget))
        known = self._known.get(tablet_id)
        if known is None or known[0] != key:
            known = key, scored_operations(*self._needs(manifest, entry), key[1])
            self._known[tablet_id] = known
        return [s for s in known[1] if (tablet_id, s.operation) not in self._refused]

    def _run_one(self, tablet_id: str, scored: ScoredOperation) -> None:
        self._tried[tablet_id] += 1
        if self.budget_bytes is not None:
            self.budget_bytes -= scored.byte_count
        try:
            is_done = self._perform(tablet_id, scored.operation)
        except StorageError as error:
            if error.errno != errno.ENOSPC:
                raise
            # The garbage collection at the end of the run may free what the operation needs.
            _log.warning("%s", error)
            is_done = False
        if not is_done:
            self._refused.add((tablet_id, scored.operation))
