"""When a process looks after its tables by itself: a while after it wrote to them.

    flush or commit ── 5 s ──▶ the tablets written to are maintained, in a thread of its own
                                  └── grace time ──▶ what that superseded is swept

More writes meanwhile do not put it off, and make it no more than once in that time per tablet. The
thread is not the one that flushes: a flush must not wait for a long compaction. Nothing waits for
the thread either, it ends with the process; what it was building is swept by whoever sweeps next.

Threads: any.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from kudulite.catalog.maintenance import maintain_tablets
from kudulite.catalog.sweep import GRACE_SECONDS, sweep
from kudulite.catalog.table_store import TableStore
from kudulite.errors import KuduliteError

MAINTENANCE_DELAY_SECONDS = 5.0
SWEEP = "sweep"  # in the place of a tablet id

_log = logging.getLogger(__name__)


def maintain_soon(store: TableStore, tablet_ids: Iterable[str]) -> None:
    """Arrange that tablets are maintained, where the client wants that to be done."""
    if not store.environment.is_maintaining:
        return
    for tablet_id in tablet_ids:
        key, work = (store.folder, tablet_id), partial(_maintain_if_there, store, tablet_id)
        store.environment.maintenance.schedule(key, work, MAINTENANCE_DELAY_SECONDS)


def sweep_later(store: TableStore) -> None:
    """Arrange that what is superseded now is swept when the grace time is over."""
    key, work = (store.folder, SWEEP), partial(_sweep_if_there, store)
    store.environment.background.schedule(key, work, GRACE_SECONDS)


def _maintain_if_there(store: TableStore, tablet_id: str) -> None:
    # The table may be deleted or renamed by now, the tablet's range dropped.
    if not store.exists() or store.newest().entry(tablet_id) is None:
        return
    try:
        done = maintain_tablets(store, [tablet_id], is_flushing=False)
    except KuduliteError as error:
        # Not again before the next write: what fails after much work would fail so for ever.
        _log.warning("table %r, maintenance of tablet %s: %s", store.name, tablet_id, error)
        return
    if done.operations:
        sweep_later(store)


def _sweep_if_there(store: TableStore) -> None:
    if store.exists():
        sweep(store)
