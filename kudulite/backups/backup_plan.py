"""Planning a backup: full or incremental, its moment and its pieces; or continuing an earlier plan.

A plan has one moment, which the safe timestamp has reached, and one version of the table. The
newest partitioning of that version covers all rows at the moment, so that the restored table has a
tablet for each of them.
"""

from __future__ import annotations

from pathlib import Path

from kudulite.backups.backup_set import Backup, BackupSet
from kudulite.backups.format import (
    PLAN_NAME,
    BackupHead,
    BackupPlan,
    PlannedPiece,
    backup_id,
)
from kudulite.chain.manifest import Manifest
from kudulite.client.table import Table, store_of
from kudulite.errors import (
    ConflictError,
    CorruptionError,
    NotFoundError,
    StorageError,
    TimestampError,
    UsageError,
)
from kudulite.model.hybrid_time import Timestamp
from kudulite.reads.tokens import ChangeToken, ScanToken
from kudulite.storage.storage import Storage
from kudulite.table.present import caught_up_memory
from kudulite.table.row_ids import last_id_of
from kudulite.table.scan_plan import planned_columns, readable_columns
from kudulite.table.snapshot import check_not_ancient, choose_snapshot
from kudulite.tablet.tablet_scan import CHANGE_COLUMNS

_PLAN_ATTEMPTS_MAX = 20


def why_not_incremental(
    table: Table, backups: BackupSet, parent: Backup | None, full: bool | None
) -> str:
    """Return the reason for a full backup, empty if an incremental one is possible.

    Raises the reason as an error if `full` is False. Raises UsageError for a set of another table.
    """
    if full:
        return ""
    store = store_of(table)
    manifest = store.newest()
    if parent is None:
        if full is False:
            raise NotFoundError(
                f"table {table.name!r}: {backups.folder} has no backup, and an incremental backup"
                " needs a parent; take a full one first (full=True)"
            )
        return ""
    if parent.table_id != manifest.table_id:
        raise UsageError(
            f"table {table.name!r} (id {manifest.table_id}): the newest backup in {backups.folder},"
            f" {parent.id}, is of table {parent.table_name!r} (id {parent.table_id}); choose"
            " another directory or prefix, or begin anew with full=True"
        )
    try:
        check_not_ancient(store, manifest, parent.moment)
        count = table.scan(at=parent.moment).count()
    except TimestampError as error:
        if full is None:
            return f"the history since backup {parent.id} is no longer kept"
        raise TimestampError(
            f"no incremental backup since {parent.id}: {error}; take a full one (full=True), and"
            " keep history for longer than the time between two backups"
        ) from error
    clash = [name for name in manifest.schema.names if name in CHANGE_COLUMNS]
    reason = ""
    if clash:
        reason = f"column {clash[0]!r} has the name of a column of `Table.changes`"
    elif count != parent.row_count:
        reason = (
            f"at the moment of backup {parent.id} the table shows {count} rows and had"
            f" {parent.row_count}: rows were purged, and changes do not include that"
        )
    if reason and full is False:
        raise ConflictError(
            f"table {table.name!r}: no incremental backup: {reason}; take a full one (full=True)"
        )
    return reason


def plan_to_continue(
    table: Table,
    backups: BackupSet,
    parent: Backup | None,
    *,
    content_hash: bool,
    is_alone: bool,
) -> BackupPlan | None:
    """Return the plan of an unfinished backup that can continue; remove other unfinished ones.

    Raises ConflictError as `remove_unfinished`.
    """
    newest = backups.newest()
    found = None
    for path in reversed(backups.unfinished()):
        plan = _read_plan(backups.storage, path)
        if found is None and plan is not None and plan.has_content_hash == content_hash:
            head = plan.head
            is_next = newest is None or head.moment > newest.moment
            is_kind = head.parent == (None if parent is None else parent.id)
            if is_next and is_kind and _can_still_be_read(table, head):
                found = plan
                continue
        backups.remove_unfinished(path, is_alone=is_alone)
    return found


def _read_plan(storage: Storage, path: Path) -> BackupPlan | None:
    """Return the plan in a backup's folder, None if it is missing, damaged or of another backup."""
    try:
        plan = BackupPlan.decode(storage.read(path / PLAN_NAME), str(path / PLAN_NAME))
    except (CorruptionError, StorageError):
        return None
    # The id names the folder that the backup writes to and cleans up: it must not be another one.
    return plan if plan.head.id == path.name else None


def _can_still_be_read(table: Table, head: BackupHead) -> bool:
    """Whether the plan's rows can be read: the same table, its columns, its moments."""
    store = store_of(table)
    manifest = store.newest()
    if manifest.table_id != head.table_id:
        return False
    try:
        columns = planned_columns(head.schema, head.schema.names, ())
        readable_columns(table.name, columns, head.moment, manifest)
        check_not_ancient(store, manifest, head.start if head.parent else head.moment)
    except (ConflictError, TimestampError):
        return False
    return True


def new_plan(table: Table, parent: Backup | None, content_hash: bool) -> BackupPlan:
    """Plan a backup of the present; a full one if there is no parent.

    Raises TimestampError if the ancient history mark has passed the parent meanwhile, ConflictError
    if the table is altered during each attempt.
    """
    store = store_of(table)
    for _ in range(_PLAN_ATTEMPTS_MAX):
        # Of the clock: without a change since the last backup the present is the same.
        present = max(store.environment.clock.now(), table.current_timestamp())
        moment = Timestamp(choose_snapshot(store, Timestamp(present)))
        manifest = store.newest()
        if len(manifest.partitions_at(moment)) > 1 or manifest.schema_since > moment:
            continue  # a range was dropped since, or a column altered
        head = _head(table, manifest, moment, parent)
        pieces = _plan_pieces(table, parent, moment, content_hash)
        now = store.newest()
        if (now.table_id, now.schema, now.partition) == (
            manifest.table_id,
            manifest.schema,
            manifest.partition,
        ):
            return BackupPlan(head, content_hash, pieces)
    raise ConflictError(f"table {table.name!r} was altered again and again; back it up later")


def _head(table: Table, manifest: Manifest, moment: Timestamp, parent: Backup | None) -> BackupHead:
    return BackupHead(
        id=backup_id(moment),
        table_name=table.name,
        table_id=manifest.table_id,
        schema=manifest.schema,
        partition=manifest.partition,
        tablet_ids=tuple(entry.id for entry in manifest.tablets),
        history_seconds=manifest.history_seconds,
        tags=dict(manifest.tags),
        start=Timestamp(0) if parent is None else parent.moment,
        moment=moment,
        row_count=table.scan(at=moment).count(),
        parent=None if parent is None else parent.id,
        parent_crc32=None if parent is None else parent.crc32,
        last_ids=_last_ids(table, manifest),
        owner=manifest.owner,
        comment=manifest.comment,
    )


def _last_ids(table: Table, manifest: Manifest) -> tuple[int, ...] | None:
    """Return the last ids of the tablets, which are at least those of rows at earlier moments."""
    if manifest.schema.auto_incrementing is None:
        return None
    store = store_of(table)
    return tuple(last_id_of(*caught_up_memory(store, entry)) for entry in manifest.tablets)


def _plan_pieces(
    table: Table, parent: Backup | None, moment: int, content_hash: bool
) -> tuple[PlannedPiece, ...]:
    tokens: list[tuple[str, ScanToken | ChangeToken]] = []
    if parent is None or content_hash:
        kind = "rows" if parent is None else "content"
        tokens += [(kind, token) for token in table.scan_tokens(at=moment)]
    if parent is not None:
        tokens += [("changes", token) for token in table.change_tokens(parent.moment, moment)]
    return tuple(
        PlannedPiece(kind, t.tablet_ids, t.lower, t.upper, t.size_bytes, t.row_count_estimate)
        for kind, t in tokens
    )
