"""When a table is flushed, maintained and collected without being asked.

    automatic                                               in the background, except the third
      memory of a table passes a multiple of `flush_bytes`  flush soon
      first unflushed write is two minutes old              flush
      it is four minutes old, or memory over 4 × the limit  the writer flushes and so waits for disk
      5 s after a flush or commit                           maintain the tablets written to
      the grace time after either                           collect garbage

Where every writer ends before its threads have done anything, as those of Spark jobs and of scripts
may, each four minutes one of them does it instead: it flushes, maintains what it has flushed, up to
a budget that costs less than a second, and collects garbage. So what is left to do stays bounded.

If several processes write to one table, the one whose write passes the multiple flushes it; the
others find the new superblock. A process that ends without flushing loses nothing: rows are in the
log.

**Threads**: any. Flushes and maintenance have a background thread each, because a flush must not
wait for a long compaction. Nothing waits for the threads: they end with the process, and garbage
collection removes unpublished files.
"""

import logging
from collections.abc import Hashable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from kudulite.errors import KuduliteError, TableNotFoundError
from kudulite.model.hybrid_time import physical_microseconds
from kudulite.table.background_work import RETRY_SECONDS
from kudulite.table.environment import Environment
from kudulite.table.memory_flush import flush_table
from kudulite.table.table_store import TableStore
from kudulite.upkeep.garbage_collection import (
    GRACE_SECONDS,
    collect_after_write,
    collect_garbage,
)
from kudulite.upkeep.maintenance import maintain_tablets

_log = logging.getLogger(__name__)

MAINTENANCE_DELAY_SECONDS = 5.0
COLLECTION, FLUSH = "collection", "flush"  # in the place of a tablet id

FLUSH_AGE_SECONDS = 120.0
OVERDUE_SECONDS = 2 * FLUSH_AGE_SECONDS
HARD_LIMIT_FACTOR = 4
_OVERDUE_BUDGET_BYTES = 64 << 20


def maintain_soon(store: TableStore, tablet_ids: Iterable[str]) -> None:
    """Schedule the maintenance of tablets, if the client maintains its tables."""
    if not store.environment.is_maintaining:
        return
    for tablet_id in tablet_ids:
        key, work = (store.folder, tablet_id), partial(_maintain_if_there, store, tablet_id)
        store.environment.maintenance.schedule(key, work, MAINTENANCE_DELAY_SECONDS)


def collect_garbage_later(store: TableStore) -> None:
    """Schedule a garbage collection for when the grace time of superseded files is over."""
    key, work = (store.folder, COLLECTION), partial(_collect_if_there, store)
    store.environment.background.schedule(key, work, GRACE_SECONDS)


def _is_there(store: TableStore, tablet_id: str) -> bool:
    """Whether the tablet still exists: its table may be deleted or renamed, its range dropped."""
    try:
        return store.newest().entry(tablet_id) is not None
    except TableNotFoundError:
        return False


def _maintain_if_there(store: TableStore, tablet_id: str) -> None:
    if not _is_there(store, tablet_id):
        return
    try:
        done = maintain_tablets(store, [tablet_id], is_flushing=False)
    except KuduliteError as error:
        # Not again before the next write: it would fail again after as much work.
        _log.warning("table %r, maintenance of tablet %s: %s", store.name, tablet_id, error)
        return
    if done.operations:
        collect_garbage_later(store)


def _collect_if_there(store: TableStore) -> None:
    place = TableStore(store.folder, store.environment)  # of any table that is there by now
    if place.chain.exists():
        collect_garbage(place)


def flush_when_needed(store: TableStore, before: int, after: int) -> None:
    """Schedule the flush of a table whose memory grew from `before` to `after` bytes.

    A failed flush is tried again later: the rows are in the log.
    """
    limit = store.environment.flush_bytes
    is_large = after // limit > before // limit or store.log.has_grown_long()
    is_far_too_large = after >= HARD_LIMIT_FACTOR * limit
    background, key = store.environment.background, (store.folder, FLUSH)
    if not is_large and not is_far_too_large and background.is_scheduled(key):
        return
    if _is_overdue(store):
        with suppress(KuduliteError):
            _keep_up(store)
            return
    delay_seconds = 0.0 if is_large else FLUSH_AGE_SECONDS
    if is_far_too_large:
        with suppress(KuduliteError):
            maintain_soon(store, flush_table(store))
            return
        delay_seconds = RETRY_SECONDS
    work = partial(_flush_if_there, store)
    background.schedule(key, work, delay_seconds)


def _is_overdue(store: TableStore) -> bool:
    """Whether no process with unflushed rows has lived until it was time to flush them."""
    memory = store.environment.memories.get(store.memory_key)
    first = 0 if memory is None else physical_microseconds(memory.first_timestamp)
    now = physical_microseconds(store.environment.clock.now())
    return first > 0 and now - first > OVERDUE_SECONDS * 1_000_000


def _keep_up(store: TableStore) -> None:
    """Do in this thread what the background did not come to."""
    tablet_ids = flush_table(store)
    if store.environment.is_maintaining:
        maintain_tablets(store, tablet_ids, is_flushing=False, budget_bytes=_OVERDUE_BUDGET_BYTES)
    collect_after_write(store)


def flush_below(environment: Environment, root: Path) -> None:
    """Flush now what this process wrote to the tables under `root`. Raises as a flush does."""
    environment.background.run_now(lambda key: _is_below(key, root))


def _is_below(key: Hashable, root: Path) -> bool:
    return isinstance(key, tuple) and key[1] == FLUSH and key[0].is_relative_to(root)


def _flush_if_there(store: TableStore) -> None:
    try:
        tablet_ids = flush_table(store)
    except TableNotFoundError:
        store.forget()
        return
    maintain_soon(store, tablet_ids)
    collect_garbage_later(store)
