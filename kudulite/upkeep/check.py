"""Check: reads one version of a table whole and compares everything that is stored twice.

    manifest    one entry per tablet of the partitioning; its figures are those of its superblock;
                it lists its own version and older ones
    files       each there, with the length and CRC that the metadata gives
    base data   row count; no null in NOT NULL columns; rows belong to the tablet
    key index   strictly ascending; the encoded keys of the base data; bounds as in the superblock
    bloom       contains every key
    deltas      row ids in range and ascending; counts and moments as in the superblock; REDO
                oldest first, a row is deleted once and changed no more; UNDO newest first, each
                row's steps lead back from alive to not inserted
    log         every frame up to the durable end; its changes fit the rows they are for
    tombstones  keys ascend, no value is null; counts and moments as in the superblock
    tablet      each key is live in one rowset at most, MemRowSet included; nothing is newer than
                the entry says
    dropped     tablets of dropped ranges, in the same way; all their rowsets have ended with them

Nothing is changed, and nothing comes from the block cache: what is checked are the bytes on disk.
Memory is bounded by a row group and a rowset's keys. Problems are collected, not raised, so that
one run names them all; a rowset whose files are damaged is not looked into further.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kudulite.basefile.base_data import BaseDataFile
from kudulite.basefile.block_cache import BlockCache
from kudulite.basefile.bloom import BloomFilter
from kudulite.chain.manifest import DroppedRange, Manifest, TabletEntry
from kudulite.chain.partition import PartitionSchema
from kudulite.delta.delta_file import OP_DELETE, OP_UPDATE, DeltaFile, DeltaFileMeta, DeltaRows
from kudulite.errors import CorruptionError, KuduliteError
from kudulite.model.encoded_key import encode_keys
from kudulite.model.hybrid_time import TIMESTAMP_MAX
from kudulite.model.types import is_widened
from kudulite.rowset.disk_rowset import DiskRowSet
from kudulite.rowset.rowset import RowSet
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.shown.progress import Progress
from kudulite.storage.storage import FileRef, read_verified, verify_file
from kudulite.table.present import read_tablet
from kudulite.table.table_store import TableStore
from kudulite.table.tags import newest_versions
from kudulite.tablet.tablet import Tablet
from kudulite.tablet.tombstones import TombstoneFileMeta, read_tombstones

# Holds what one rowset has open; evicted as the check proceeds.
_CACHE_BYTES = 64 << 20
_KEYS_AT_ONCE = 1 << 16
PROBLEMS_SHOWN_MAX = 20


@dataclass(frozen=True)
class CheckReport:
    """Counts of what a check read, and its `problems`, each naming its file or tablet.

    `row_count` is of live rows; files and bytes are those that version `version` refers to.
    """

    table: str
    version: int
    tablet_count: int
    rowset_count: int
    file_count: int
    byte_count: int
    row_count: int
    problems: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def raise_if_bad(self) -> CheckReport:
        """Return the report, or raise CorruptionError listing the first problems."""
        if self.is_good:
            return self
        shown = "\n  ".join(self.problems[:PROBLEMS_SHOWN_MAX])
        more = len(self.problems) - PROBLEMS_SHOWN_MAX
        rest = f"\n  and {more} more" if more > 0 else ""
        raise CorruptionError(
            f"table {self.table!r} at version {self.version}: {len(self.problems)} problems:"
            f"\n  {shown}{rest}"
        )


def check_table(store: TableStore) -> CheckReport:
    """Check the newest version. Raises only where there is no readable manifest."""
    environment = replace(
        store.environment,
        cache=BlockCache(store.storage, _CACHE_BYTES),
        memories={},
        write_queues={},
    )
    fresh = TableStore(store.folder, environment)
    manifest = fresh.newest()
    total = sum(entry.bytes_on_disk for entry in manifest.readable_tablets)
    with Progress(f"check of table {store.name!r}", total, "bytes") as progress:
        check = _Check(fresh, manifest, progress)
        check.run()
    return CheckReport(
        table=store.name,
        version=check.manifest.version,
        tablet_count=len(check.manifest.tablets),
        rowset_count=check.rowset_count,
        file_count=check.file_count,
        byte_count=check.byte_count,
        row_count=check.row_count,
        problems=tuple(check.problems),
    )


@dataclass
class _Check:
    """One run over one version."""

    store: TableStore
    manifest: Manifest
    progress: Progress
    problems: list[str] = field(default_factory=list)
    rowset_count: int = 0
    file_count: int = 0
    byte_count: int = 0
    row_count: int = 0

    def run(self) -> None:
        """Check all tablets."""
        manifest = self.manifest
        for version in range(manifest.version, 0, -1):
            if not self.store.chain.has(version):
                break
            with self.problems_of(f"version {version}"):
                self.store.chain.check_entry(version)
        with self.problems_of("the list of versions"):
            commits = newest_versions(self.store, manifest)
            versions = [(v.version, v.timestamp) for v in commits if v.version is not None]
            listed = [number for number, _ in versions]
            self.expect(
                listed[:1] in ([], [manifest.version]) and len(set(listed)) == len(listed),
                f"{self.store.folder}: version {manifest.version} lists versions {listed}, expected"
                " itself and older ones, each once",
            )
            start = manifest.versions.ordered_from
            ordered = [stamp for number, stamp in versions if start is not None and number >= start]
            self.expect(
                ordered == sorted(set(ordered), reverse=True),
                f"{self.store.folder}: version {manifest.version} lists versions whose timestamps"
                f" do not ascend from version {start} on",
            )
        ids = [entry.id for entry in manifest.readable_tablets]
        self.expect(len(set(ids)) == len(ids), f"{self.store.folder}: a tablet is listed twice")
        partitions = [(manifest.partition, manifest.tablets)]
        with self.problems_of("the list of tablets"):
            partitions = manifest.partitions_at(0)
        for partition, entries in partitions:
            for index, entry in enumerate(entries):
                with self.problems_of(f"tablet {entry.id}"):
                    self._check_tablet(partition, index, entry)
        for dropped in manifest.dropped:
            for entry in dropped.tablets:
                with self.problems_of(f"tablet {entry.id}"):
                    self._check_dropped(dropped, entry)

    def expect(self, condition: bool, problem: str) -> bool:
        """Note `problem` unless `condition` holds; returns the condition."""
        if not condition:
            self.problems.append(problem)
        return condition

    @contextmanager
    def problems_of(self, what: str) -> Iterator[None]:
        """Turn what makes reading `what` impossible into a problem."""
        try:
            yield
        except KuduliteError as error:
            if str(error) not in self.problems:  # a damaged log is one of each tablet
                self.problems.append(str(error))
        except (pa.ArrowException, OSError) as error:
            self.problems.append(f"{what}: {error}")

    def _check_dropped(self, dropped: DroppedRange, entry: TabletEntry) -> None:
        """Check that nothing of a dropped tablet outlives its range."""
        tablet = read_tablet(self.store, entry)
        ends = [rowset.meta.delete_timestamp for rowset in tablet.disk_rowsets]
        alive = sum(end is None or end > dropped.timestamp for end in ends)
        self.expect(
            not alive and tablet.memrowset is None and entry.timestamp == dropped.timestamp,
            f"tablet {entry.id}: was dropped at {dropped.timestamp}, but {alive} rowsets end later,"
            f" or its log has rows, or it changed at {entry.timestamp}",
        )

    def _check_tablet(self, partition: PartitionSchema, index: int, entry: TabletEntry) -> None:
        tablet = self.store.tablet(entry)
        self._count(entry.superblock)
        what = f"tablet {entry.id}"
        for base in tablet.superblock.base_refs:
            with self.problems_of(what):
                self.check_file(tablet.folder / base.name, base)
        metas = tablet.superblock.rowsets
        live, size = tablet.live_row_count, sum(meta.bytes_on_disk for meta in metas)
        self.expect(
            live == entry.live_row_count,
            f"{what}: {live} live rows, the manifest says {entry.live_row_count}",
        )
        self.expect(
            size == entry.bytes_on_disk,
            f"{what}: {size} bytes in its files, the manifest says {entry.bytes_on_disk}",
        )
        self.expect(
            tablet.timestamp_max <= entry.timestamp,
            f"{what}: its newest change is at {tablet.timestamp_max}, the manifest says"
            f" {entry.timestamp}",
        )
        rowset_ids = [meta.id for meta in metas]
        self.expect(len(set(rowset_ids)) == len(rowset_ids), f"{what}: a rowset is listed twice")
        readable = True
        for rowset in tablet.disk_rowsets:
            count = len(self.problems)
            with self.problems_of(str(rowset.folder)):
                self.rowset_count += 1
                _RowSetCheck(self, rowset, partition, index, entry.last_id).run()
            readable &= len(self.problems) == count
        with self.problems_of(what):
            tablet = read_tablet(self.store, entry)  # what its log holds, on top
            self.row_count += tablet.live_row_count
        for file in tablet.superblock.tombstones:
            path = tablet.folder / file.ref.name
            with self.problems_of(str(path)):
                self._check_tombstones(path, file, entry)
        if readable:
            self._check_keys_are_live_once(tablet)

    def _check_tombstones(self, path: Path, meta: TombstoneFileMeta, entry: TabletEntry) -> None:
        self.check_file(path, meta.ref)
        stamps = read_tombstones(self.store.storage, path, meta).timestamps
        found = int(stamps.min()), int(stamps.max())
        expected = meta.timestamp_min, meta.timestamp_max
        self.expect(
            expected[0] <= found[0] and found[1] <= expected[1] <= entry.timestamp,
            f"{path}: timestamps from {found[0]} to {found[1]}, the superblock says {expected[0]}"
            f" to {expected[1]}, the manifest up to {entry.timestamp}",
        )

    def check_file(self, path: Path, ref: FileRef) -> None:
        """Check a file's length and CRC. Raises CorruptionError, StorageError."""
        self._count(ref)
        verify_file(self.store.storage, path, ref)

    def _count(self, ref: FileRef) -> None:
        self.file_count += 1
        self.byte_count += ref.length
        self.progress.add(ref.length)

    def _check_keys_are_live_once(self, tablet: Tablet) -> None:
        """Probe each rowset's live keys in the rowsets after it that overlap."""
        position = {rowset: at for at, rowset in enumerate(tablet.rowsets)}
        for rowset in tablet.disk_rowsets:
            if rowset.meta.delete_timestamp is not None:
                continue
            applier = rowset.applier(TIMESTAMP_MAX)
            for start in range(0, rowset.meta.row_count, _KEYS_AT_ONCE):
                keys = rowset.key_index.slice(start, start + _KEYS_AT_ONCE)
                live = applier.selection(start, start + len(keys))
                keys = keys if live is None else keys.take(np.flatnonzero(live))
                for other, low, high in tablet.current.probe_ranges(keys):
                    if position[other] <= position[rowset]:
                        continue
                    count = np.count_nonzero(other.find(keys.slice(low, high), TIMESTAMP_MAX) >= 0)
                    self.expect(
                        count == 0,
                        f"tablet {tablet.id}: {count} keys are live in rowset {rowset.meta.id} and"
                        f" in {_name_of(other)}",
                    )


def _name_of(rowset: RowSet) -> str:
    return rowset.meta.id if isinstance(rowset, DiskRowSet) else "the MemRowSet"


@dataclass
class _RowSetCheck:
    """The check of one DiskRowSet, whose rows belong to tablet number `index` of `partition`.

    `last_id` is the manifest's highest `auto_incrementing_id` of the tablet.
    """

    check: _Check
    rowset: DiskRowSet
    partition: PartitionSchema
    index: int
    last_id: int | None

    def run(self) -> None:
        """Check files first; then, as they can be read, what is in them."""
        meta = self.rowset.meta
        refs = [base.ref for base in meta.base] + [meta.key_index, meta.bloom]
        for ref in [*refs, *(delta.ref for delta in (*meta.undo, *meta.redo))]:
            self.check.check_file(self.rowset.folder / ref.name, ref)
        self._check_keys(meta)
        for base in meta.base:
            path = self.rowset.folder / base.ref.name
            file = BaseDataFile(self.rowset.storage, path, base.ref)
            if self._expect(
                file.row_count == meta.row_count,
                f"{file.path}: {file.row_count} rows, the superblock says {meta.row_count}",
            ):
                self._check_base(file, base.column_ids)
        self._check_undo(meta)
        self._check_redo(meta)

    def _expect(self, condition: bool, problem: str) -> bool:
        return self.check.expect(condition, problem)

    def _check_keys(self, meta: RowSetMeta) -> None:
        index = self.rowset.key_index
        path = self.rowset.folder / meta.key_index.name
        count_holds = self._expect(
            index.row_count == meta.row_count and meta.row_count > 0,
            f"{path}: {index.row_count} keys, the superblock says {meta.row_count}",
        )
        if not count_holds:
            return
        bloom_path = self.rowset.folder / meta.bloom.name
        bloom = BloomFilter(bloom_path, read_verified(self.rowset.storage, bloom_path, meta.bloom))
        for start in range(0, index.row_count, _KEYS_AT_ONCE):
            # One key of overlap, so that the order across the border is seen too.
            keys = index.slice(max(0, start - 1), start + _KEYS_AT_ONCE)
            self._expect(keys.is_sorted(strict=True), f"{path}: keys do not ascend after {start}")
            missing = np.count_nonzero(~bloom.may_contain(keys))
            self._expect(missing == 0, f"{bloom_path}: {missing} keys of the rowset are not in it")
        first, last = index.slice(0, 1)[0], index.slice(meta.row_count - 1, meta.row_count)[0]
        self._expect(
            (first, last) == (meta.key_min, meta.key_max),
            f"{path}: keys from {first.hex()} to {last.hex()}, the superblock says"
            f" {meta.key_min.hex()} to {meta.key_max.hex()}",
        )

    def _check_base(self, file: BaseDataFile, column_ids: Sequence[int]) -> None:
        schema = self.check.manifest.stored_schema
        columns = [c for i in column_ids if (c := schema.column_by_id(i)) is not None]
        names = [column.name for column in columns]
        missing = [column.name for column in columns if column.id not in file.name_by_id]
        if not self._expect(not missing, f"{file.path}: has no column {', '.join(missing)}"):
            return
        stored_names = [file.name_by_id[column.id] for column in columns]
        for group in range(file.row_group_count):
            start, stop = file.row_group_rows(group)
            rows = file.read([group], stored_names).rename_columns(names)
            for column in columns:
                stored = rows.column(column.name).type
                self._expect(
                    is_widened(stored, column.type.arrow),
                    f"{file.path}: column {column.name!r} is {stored}, expected {column.type}",
                )
                self._expect(
                    column.nullable or rows.column(column.name).null_count == 0,
                    f"{file.path}: null in column {column.name!r}, which is NOT NULL",
                )
            if set(schema.key_names) <= set(names):
                self._check_key_columns(file, rows, start, stop)

    def _check_key_columns(self, file: BaseDataFile, rows: pa.Table, start: int, stop: int) -> None:
        manifest = self.check.manifest
        columns = {n: rows.column(n).combine_chunks() for n in manifest.schema.key_names}
        keys = encode_keys(list(columns.values()), manifest.schema.key_types)
        stored = self.rowset.key_index.slice(start, stop)
        self._expect(
            keys.to_arrow().equals(stored.to_arrow()),
            f"{file.path}: the keys of rows {start} to {stop} are not those of the key index",
        )
        owners = self.partition.tablet_index(columns, rows.num_rows)
        strays = np.count_nonzero(owners != self.index)
        self._expect(strays == 0, f"{file.path}: {strays} rows belong to another tablet")
        if manifest.schema.auto_incrementing is not None:
            found = pc.max(columns[manifest.schema.auto_incrementing]).as_py()
            self._expect(
                found <= (self.last_id or 0),
                f"{file.path}: a row has the id {found}, the manifest's last id of the tablet is"
                f" {self.last_id}",
            )

    # -- deltas

    def _check_undo(self, meta: RowSetMeta) -> None:
        """Check UNDO files one by one, and that walking back leads from alive to not inserted."""
        rowids, ops = [np.empty(0, np.int64)], [np.empty(0, np.uint8)]
        for delta in meta.undo:
            path = self.rowset.folder / delta.ref.name
            file = DeltaFile(self.rowset.storage, path, delta, meta.row_count)
            rows = file.read()
            self._check_delta(file.path, delta, rows, is_undo=True)
            steps = rows.ops != OP_UPDATE
            rowids.append(rows.rowids[steps])
            ops.append(rows.ops[steps])
        order = np.argsort(np.concatenate(rowids), kind="stable")
        row, is_delete = np.concatenate(rowids)[order], np.concatenate(ops)[order] == OP_DELETE
        is_first = np.append(True, row[1:] != row[:-1])[: len(row)]
        previous = np.append(False, is_delete[:-1])[: len(row)]
        wrong = np.where(is_first, ~is_delete, is_delete == previous)
        self._expect(
            not wrong.any(),
            f"{self.rowset.folder}: UNDO files delete or revive {np.count_nonzero(wrong)} times a"
            " row that is so already",
        )

    def _check_redo(self, meta: RowSetMeta) -> None:
        """Check REDO files one by one, and the order and deletes over all of them."""
        deleted = np.empty(0, np.int64)
        newest = meta.insert_timestamp
        for delta in meta.redo:
            path = self.rowset.folder / delta.ref.name
            file = DeltaFile(self.rowset.storage, path, delta, meta.row_count)
            self._expect(
                newest <= delta.timestamp_min <= delta.timestamp_max,
                f"{file.path}: from {delta.timestamp_min} to {delta.timestamp_max}, after"
                f" {newest} in the rowset",
            )
            newest = max(newest, delta.timestamp_max)
            rows = file.read()
            self._check_delta(file.path, delta, rows)
            dead = np.isin(rows.rowids, deleted)
            self._expect(
                not dead.any(),
                f"{file.path}: changes {np.count_nonzero(dead)} rows that were deleted before",
            )
            deleted = np.union1d(deleted, rows.rowids[rows.ops == OP_DELETE])
        ended = meta.delete_timestamp
        self._expect(
            ended is None or ended >= newest,
            f"{self.rowset.folder}: the rowset ended at {ended}, before its newest change at"
            f" {newest}",
        )

    def _check_delta(
        self, path: Path, meta: DeltaFileMeta, rows: DeltaRows, *, is_undo: bool = False
    ) -> None:
        steps = np.diff(rows.rowids)
        if rows.timestamps is None:
            ascends = (steps > 0).all()
        else:
            before, after = rows.timestamps[:-1], rows.timestamps[1:]
            in_time = after <= before if is_undo else after >= before
            ascends = ((steps > 0) | ((steps == 0) & in_time)).all()
            found = int(rows.timestamps.min()), int(rows.timestamps.max())
            self._expect(
                found == (meta.timestamp_min, meta.timestamp_max),
                f"{path}: timestamps from {found[0]} to {found[1]}, the superblock says"
                f" {meta.timestamp_min} to {meta.timestamp_max}",
            )
        self._expect(bool(ascends), f"{path}: row ids and their timestamps are not in order")
        is_delete = rows.ops == OP_DELETE
        others = ~is_delete & (rows.ops != OP_UPDATE)
        counts = int(np.count_nonzero(is_delete)), int(np.count_nonzero(others))
        self._expect(
            counts == (meta.delete_count, meta.reinsert_count),
            f"{path}: {counts[0]} deletes and {counts[1]} revivals, the superblock says"
            f" {meta.delete_count} deletes and {meta.reinsert_count} revivals",
        )
        self._expect(is_undo or not counts[1], f"{path}: a REDO file revives {counts[1]} rows")
        self._check_delta_columns(path, meta, rows, is_delete)

    def _check_delta_columns(
        self, path: Path, meta: DeltaFileMeta, rows: DeltaRows, is_delete: np.ndarray
    ) -> None:
        for column_id, changed in rows.columns.items():
            column = self.check.manifest.stored_schema.column_by_id(column_id)
            count = len(rows.rowids)
            is_set = np.ones(count, bool) if changed.is_set is None else changed.is_set
            self._expect(
                np.count_nonzero(is_set) == meta.update_counts[column_id],
                f"{path}: {np.count_nonzero(is_set)} updates of column {column_id}, the superblock"
                f" says {meta.update_counts[column_id]}",
            )
            self._expect(not (is_set & is_delete).any(), f"{path}: a DELETE sets a column")
            if column is None:
                continue
            self._expect(
                is_widened(changed.values.type, column.type.arrow),
                f"{path}: values of {changed.values.type} for column {column.name!r} of type"
                f" {column.type}",
            )
            nulls = changed.values.is_null().to_numpy(zero_copy_only=False) & is_set
            self._expect(
                column.nullable or not nulls.any(),
                f"{path}: null in column {column.name!r}, which is NOT NULL",
            )
