"""When memory is flushed: large, old, or far too large.

    memory passes a multiple of `flush_bytes`    soon, in the background
    first unflushed write is two minutes old     in the background
    memory over 4 × `flush_bytes`                by the writer itself, who so waits for the disk

Of several processes that write to one tablet only the one whose write passes the multiple flushes
it for its size; the others find the new superblock. What no thread comes to flush is in the log.

What a flush supersedes, log segments above all, is swept by the thread when the grace time is over;
the tablet is maintained soon after.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from functools import partial
from pathlib import Path

from kudulite.catalog.background import RETRY_SECONDS
from kudulite.catalog.flush import flush_tablet
from kudulite.catalog.maintenance_schedule import SWEEP, maintain_soon, sweep_later
from kudulite.catalog.table_store import Environment, TableStore
from kudulite.errors import KuduliteError

FLUSH_AGE_SECONDS = 120.0
HARD_LIMIT_FACTOR = 4


def flush_when_needed(store: TableStore, tablet_id: str, before: int, after: int) -> None:
    """Arrange the flush of a tablet whose memory grew from `before` to `after` bytes.

    A flush that fails is tried again later: what was written is in the log.
    """
    limit = store.environment.flush_bytes
    is_large = after // limit > before // limit
    is_far_too_large = after >= HARD_LIMIT_FACTOR * limit
    background, key = store.environment.background, (store.folder, tablet_id)
    if not is_large and not is_far_too_large and background.is_scheduled(key):
        return
    delay_seconds = 0.0 if is_large else FLUSH_AGE_SECONDS
    if is_far_too_large:
        with suppress(KuduliteError):
            flush_tablet(store, tablet_id)
            maintain_soon(store, [tablet_id])
            return
        delay_seconds = RETRY_SECONDS
    work = partial(_flush_if_there, store, tablet_id)
    background.schedule(key, work, delay_seconds)


def flush_below(environment: Environment, root: Path) -> None:
    """Flush now what this process wrote to the tables under `root`. Raises as a flush does."""
    environment.background.run_now(lambda key: _is_below(key, root))


def _is_below(key: Hashable, root: Path) -> bool:
    return isinstance(key, tuple) and key[1] != SWEEP and key[0].is_relative_to(root)


def _flush_if_there(store: TableStore, tablet_id: str) -> None:
    # The table may be deleted or renamed by now, the tablet's range dropped: by another process.
    if not store.exists() or store.newest().entry(tablet_id) is None:
        store.forget(tablet_id)
        return
    flush_tablet(store, tablet_id)
    maintain_soon(store, [tablet_id])
    sweep_later(store)
