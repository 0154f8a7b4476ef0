"""TableStatistics: what a table holds, in rows, files and bytes, and what upkeep would be worth."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.model.hybrid_time import Timestamp
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.shown.html import html_fields
from kudulite.shown.openmetrics import Family
from kudulite.table.present import read_tablets
from kudulite.table.snapshot import ancient_history_mark
from kudulite.table.table_store import TableStore
from kudulite.tablet.compaction_policy import average_height
from kudulite.tablet.maintenance_policy import ancient_bytes, dead_row_count, extents_of
from kudulite.upkeep.garbage_collection import superseded_bytes


@dataclass(frozen=True)
class TableStatistics:
    """Figures of one version of a table; bytes are on disk.

    `rowset_height` is how many rowsets cover a key on average, in the worst tablet; a lookup
    has to search that many, so 1 is best. `redo_bytes` are applied by every read that touches their
    columns, `undo_bytes` by reads of the past. Of these, `ancient_bytes` (estimated) lie behind the
    ancient history mark and may be collected. `dead_row_count` rows are deleted and still stored,
    for the past. `superseded_bytes` are in files that the newest version does not refer to.
    `unflushed_row_count` rows are in memory and in the logs, which take `log_bytes`; a process that
    opens the table reads the logs first. `last_write` is the time of the newest write or
    alteration; upkeep is none.
    """

    version: int
    tablet_count: int
    live_row_count: int
    rowset_count: int
    rowset_height: float
    redo_file_count: int
    redo_bytes: int
    undo_file_count: int
    undo_bytes: int
    ancient_bytes: int
    dead_row_count: int
    bytes_on_disk: int
    superseded_bytes: int
    unflushed_row_count: int
    log_bytes: int
    last_write: Timestamp
    ancient_history_mark: Timestamp

    def _repr_html_(self) -> str:
        """Return the figures as an HTML table, for notebooks."""
        return html_fields(vars(self).items())


def live_row_count(store: TableStore) -> int:
    """Return the rows of the newest state, from superblocks and what the log holds in memory."""
    return sum(tablet.live_row_count for tablet in read_tablets(store)[1])


def table_statistics(store: TableStore) -> TableStatistics:
    """Return the figures of the newest version. Raises CorruptionError, StorageError."""
    (manifest, memory, _), tablets = read_tablets(store)
    mark = ancient_history_mark(store, manifest)
    by_tablet = [[rowset.meta for rowset in tablet.disk_rowsets] for tablet in tablets]
    current = [[m for m in metas if m.delete_timestamp is None] for metas in by_tablet]
    everything = [meta for metas in by_tablet for meta in metas]
    rowsets = [meta for metas in current for meta in metas]
    redo_file_count, redo_bytes = _files(rowsets, lambda meta: meta.redo)
    undo_file_count, undo_bytes = _files(everything, lambda meta: meta.undo)
    return TableStatistics(
        version=manifest.version,
        tablet_count=len(tablets),
        live_row_count=sum(tablet.live_row_count for tablet in tablets),
        rowset_count=len(rowsets),
        rowset_height=max(map(average_height, map(extents_of, current)), default=0.0),
        redo_file_count=redo_file_count,
        redo_bytes=redo_bytes,
        undo_file_count=undo_file_count,
        undo_bytes=undo_bytes,
        ancient_bytes=sum(ancient_bytes(meta, mark) for meta in everything),
        dead_row_count=sum(dead_row_count(meta) for meta in everything),
        bytes_on_disk=sum(entry.bytes_on_disk for entry in manifest.tablets),
        superseded_bytes=superseded_bytes(store),
        unflushed_row_count=sum(tablet.memory_row_count for tablet in tablets),
        log_bytes=store.log.nbytes,
        last_write=Timestamp(max(manifest.timestamp, memory.last_timestamp)),
        ancient_history_mark=Timestamp(mark),
    )


def statistics_families(
    tables: Sequence[tuple[Mapping[str, str], TableStatistics | None]],
) -> Iterator[Family]:
    """Yield the metrics of tables, each given by its labels; None is one that cannot be read."""
    values: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for labels, statistics in tables:
        for name, value in () if statistics is None else vars(statistics).items():
            if isinstance(value, Timestamp):
                name, value = f"{name}_seconds", value.to_datetime().timestamp() if value else 0.0
            values.setdefault(name, []).append((labels, value))
    readable = [(labels, int(statistics is not None)) for labels, statistics in tables]
    unreadable_count = sum(not value for _, value in readable)
    about = "tables whose statistics could not be read"
    yield Family("tables_unreadable", "gauge", about, [({}, unreadable_count)])
    yield Family("table_readable", "gauge", "1 if the statistics could be read, else 0", readable)
    for name, samples in values.items():
        yield Family(f"table_{name}", "gauge", name.replace("_", " "), samples)


def _files(
    metas: Sequence[RowSetMeta], files_of: Callable[[RowSetMeta], Sequence[DeltaFileMeta]]
) -> tuple[int, int]:
    """Return the number and the bytes of the delta files of some kind."""
    lengths = [delta.ref.length for meta in metas for delta in files_of(meta)]
    return len(lengths), sum(lengths)
