"""Maintenance manager: one operation after the other, the best of all tablets first.

    flush    what logs hold goes to rowsets, so that it can be looked after
    pass     score all tablets → lock the best one for maintenance → score it again → run → …
             until nothing is worth doing, or the budget of bytes is used
    sweep    versions, files and dropped ranges that nobody can need any more

A tablet has one maintainer at a time, of all processes: a lock file of its own, which readers and
writers do not know. Who finds it locked leaves the tablet to the other one. A process that dies
loses the lock; what it had built is swept. Nothing breaks without the lock: two operations on the
same rowsets at once cost the work of one of them.

An operation that could not be published, since a writer was faster, is not tried again in the same
pass.

Threads: any; a pass belongs to one thread.

Source: Kudu util/maintenance_manager.cc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from kudulite.catalog.compaction import OperationResult, run_operation
from kudulite.catalog.flush import flush_tablet
from kudulite.catalog.history import ancient_history_mark
from kudulite.catalog.range_drop import forget_dropped_ranges
from kudulite.catalog.sweep import (
    GRACE_SECONDS,
    STAGING_GRACE_SECONDS,
    SweepResult,
    sweep,
)
from kudulite.catalog.table_store import TableStore
from kudulite.errors import LockTimeoutError, UsageError
from kudulite.fs.lock import TabletLock, create_lock_file
from kudulite.tablet.compaction_policy import BUDGET_BYTES
from kudulite.tablet.maintenance_policy import (
    Operation,
    ScoredOperation,
    full_compaction,
    scored_operations,
)
from kudulite.tablet.tablet import MAINTENANCE_LOCK_NAME

# A tablet that is written to without end does not keep a pass for ever.
OPERATIONS_PER_TABLET_MAX = 100
_FULL_COMPACTION_ROUNDS_MAX = 8

Run = Callable[[TableStore, str, Operation], OperationResult | None]
Report = Callable[[str, Operation], None]


@dataclass(frozen=True)
class PerformedOperation:
    """One operation on a tablet, and what it made of it."""

    tablet_id: str
    operation: Operation
    result: OperationResult


@dataclass(frozen=True)
class MaintenanceResult:
    """What maintenance did: tablets flushed, operations in their order, what the sweep removed.

    `busy_tablet_ids` were left to another maintainer, `dropped_range_count` are ranges dropped so
    long ago that their past is gone now.
    """

    flushed_tablet_count: int = 0
    operations: tuple[PerformedOperation, ...] = ()
    busy_tablet_ids: tuple[str, ...] = ()
    dropped_range_count: int = 0
    swept: SweepResult = field(default_factory=SweepResult)

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
    report: Report = lambda tablet_id, operation: None,
) -> MaintenanceResult:
    """Flush, do all that is worth doing within `budget_bytes` of files to rewrite, and sweep.

    `report` is told of each operation before it is run. Raises LockTimeoutError, StorageError,
    CorruptionError; what was published until then stays.
    """
    tablet_ids = [entry.id for entry in store.newest().tablets]
    # One that is dropped meanwhile has nothing to do.
    done = _maintained(
        store, tablet_ids, is_flushing=True, budget_bytes=budget_bytes, run=run, report=report
    )
    range_count = forget_dropped_ranges(store)
    swept = sweep(store, grace_seconds, staging_grace_seconds)
    return MaintenanceResult(
        done.flushed_tablet_count, done.operations, done.busy_tablet_ids, range_count, swept
    )


def maintain_tablets(
    store: TableStore,
    tablet_ids: Collection[str],
    *,
    is_flushing: bool = True,
    budget_bytes: int | None = None,
    run: Run = run_operation,
    report: Report = lambda tablet_id, operation: None,
) -> MaintenanceResult:
    """Flush some tablets and do all that is worth doing there; nothing is swept.

    What is in memory is left to the flush policy without `is_flushing`. Raises UsageError for an
    unknown tablet, and as `maintain_table`.
    """
    _check_tablet_ids(store, tablet_ids)
    return _maintained(
        store,
        tablet_ids,
        is_flushing=is_flushing,
        budget_bytes=budget_bytes,
        run=run,
        report=report,
    )


def _maintained(
    store: TableStore,
    tablet_ids: Collection[str],
    *,
    is_flushing: bool,
    budget_bytes: int | None,
    run: Run,
    report: Report,
) -> MaintenanceResult:
    flushed_count = 0
    if is_flushing:
        flushed_count = sum(flush_tablet(store, tablet_id) for tablet_id in tablet_ids)
    maintenance = _Pass(store, list(tablet_ids), budget_bytes, run, report)
    maintenance.run_to_end()
    busy = tuple(sorted(maintenance.busy))
    return MaintenanceResult(flushed_count, tuple(maintenance.performed), busy)


def compact_table(
    store: TableStore,
    *,
    run: Run = run_operation,
    report: Report = lambda tablet_id, operation: None,
) -> MaintenanceResult:
    """Flush, and bring each tablet to its best shape, whatever it costs; see `full_compaction`.

    Waits for another maintainer of a tablet as long as for any lock. Raises as `maintain_table`.
    """
    flushed_count = 0
    performed: list[PerformedOperation] = []
    for entry in store.newest().tablets:
        with maintenance_lock(store, entry.id, store.environment.lock_timeout_seconds) as is_had:
            if not is_had:
                raise LockTimeoutError(
                    f"table {store.name!r}: tablet {entry.id} is being maintained by somebody"
                    " else; try again later"
                )
            flushed_count += flush_tablet(store, entry.id)
            performed += _compact_tablet(store, entry.id, run, report)
    return MaintenanceResult(flushed_count, tuple(performed))


@contextmanager
def maintenance_lock(
    store: TableStore, tablet_id: str, timeout_seconds: float = 0.0
) -> Iterator[bool]:
    """Be the tablet's only maintainer; False where somebody else is, and stays."""
    path = store.tablet_folder(tablet_id) / MAINTENANCE_LOCK_NAME
    create_lock_file(path)
    with ExitStack() as stack:
        lock = None
        with suppress(LockTimeoutError):
            lock = stack.enter_context(TabletLock(path, timeout_seconds))
            lock.announce("maintenance")
        yield lock is not None


def _check_tablet_ids(store: TableStore, tablet_ids: Collection[str]) -> None:
    known = [entry.id for entry in store.newest().tablets]
    for tablet_id in tablet_ids:
        if tablet_id not in known:
            raise UsageError(
                f"table {store.name!r} has no tablet {tablet_id!r}; its tablets:"
                f" {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
            )


def _compact_tablet(
    store: TableStore, tablet_id: str, run: Run, report: Report
) -> Iterator[PerformedOperation]:
    for _ in range(_FULL_COMPACTION_ROUNDS_MAX):
        manifest = store.newest()
        entry = manifest.entry(tablet_id)
        if entry is None:
            return
        mark = ancient_history_mark(store, manifest)
        column_ids = {column.id for column in manifest.schema.columns}
        plan = full_compaction(store.tablet(entry).superblock, mark, column_ids)
        is_any_done = False
        for operation in plan:
            report(tablet_id, operation)
            result = run(store, tablet_id, operation)
            if result is not None:
                is_any_done = True
                yield PerformedOperation(tablet_id, operation, result)
        if not is_any_done:
            return


@dataclass
class _Pass:
    """One pass over some tablets."""

    store: TableStore
    tablet_ids: list[str]
    budget_bytes: int | None
    run: Run
    report: Report
    performed: list[PerformedOperation] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    _refused: set[tuple[str, Operation]] = field(default_factory=set)
    _tried: Counter[str] = field(default_factory=Counter)
    # By tablet: for which superblock and budget they were found, and what was worth doing.
    _known: dict[str, tuple[tuple[str, int], list[ScoredOperation]]] = field(default_factory=dict)

    def run_to_end(self) -> None:
        """Run one operation after the other until none is left that is worth it."""
        while (tablet_id := self._best_tablet()) is not None:
            with maintenance_lock(self.store, tablet_id) as is_had:
                if not is_had:
                    self.busy.add(tablet_id)
                    continue
                # Again, now that nobody else maintains it.
                found = self._candidates(tablet_id)
                if found:
                    self._run_one(tablet_id, found[0])

    def _best_tablet(self) -> str | None:
        best, best_rank = None, (0, 0.0)
        for tablet_id in self.tablet_ids:
            found = self._candidates(tablet_id)
            if found and found[0].rank > best_rank:
                best, best_rank = tablet_id, found[0].rank
        return best

    def _candidates(self, tablet_id: str) -> list[ScoredOperation]:
        """Return what is worth doing to a tablet and was not refused, the best first."""
        if tablet_id in self.busy or self._tried[tablet_id] >= OPERATIONS_PER_TABLET_MAX:
            return []
        manifest = self.store.newest()
        entry = manifest.entry(tablet_id)
        if entry is None:
            return []
        key = (entry.superblock.name, min(BUDGET_BYTES, self._budget_left()))
        known = self._known.get(tablet_id)
        if known is None or known[0] != key:
            mark = ancient_history_mark(self.store, manifest)
            column_ids = {column.id for column in manifest.schema.columns}
            superblock = self.store.tablet(entry).superblock
            known = key, scored_operations(superblock, mark, column_ids, key[1])
            self._known[tablet_id] = known
        return [s for s in known[1] if (tablet_id, s.operation) not in self._refused]

    def _budget_left(self) -> int:
        if self.budget_bytes is None:
            return BUDGET_BYTES
        return max(0, self.budget_bytes)

    def _run_one(self, tablet_id: str, scored: ScoredOperation) -> None:
        self._tried[tablet_id] += 1
        if self.budget_bytes is not None:
            self.budget_bytes -= scored.byte_count
        self.report(tablet_id, scored.operation)
        result = self.run(self.store, tablet_id, scored.operation)
        if result is None:
            self._refused.add((tablet_id, scored.operation))
        else:
            self.performed.append(PerformedOperation(tablet_id, scored.operation, result))
