"""The delta files of a rowset, and the appliers that its readers share.

The newest applier is kept, and one of a past timestamp, because a scan asks for it once per block.

**Threads**: any. Two threads that both miss an applier in an `ApplierMemo` make it twice, which
does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from kudulite.basefile.block_cache import BlockCache
from kudulite.delta.delta_applier import DeltaApplier
from kudulite.delta.delta_file import DeltaFile, DeltaFileMeta
from kudulite.rowset.rowset_meta import RowSetMeta

# Bytes that are counted in the block cache.
_DELTA_ROW_BYTES = 9  # a delta file keeps row ids and operations; it reads values each time


class ApplierMemo:
    """The newest applier of a rowset and one of the past; from `timestamp_max` on all are equal.

    It keeps no reference to the rowset, so that an unused rowset is freed at once.
    """

    def __init__(self, timestamp_max: int) -> None:
        self.timestamp_max = timestamp_max
        self._latest: DeltaApplier | None = None
        self._recent: tuple[int, DeltaApplier] | None = None

    def at(self, timestamp: int, make: Callable[[int], DeltaApplier]) -> DeltaApplier:
        """Return the applier of a snapshot at `timestamp`; `make` makes a missing one."""
        if timestamp >= self.timestamp_max:
            if self._latest is None:
                self._latest = make(timestamp)
            return self._latest
        recent = self._recent
        if recent is None or recent[0] != timestamp:
            recent = self._recent = (timestamp, make(timestamp))
        return recent[1]


class RowSetDeltas:
    """The UNDO and REDO files that a superblock lists for a rowset in `folder`."""

    def __init__(self, meta: RowSetMeta, folder: Path, cache: BlockCache) -> None:
        self._meta = meta
        self._folder, self._folder_text = folder, str(folder)
        self._cache = cache
        self.timestamp_max = max((m.timestamp_max for m in (*meta.redo, *meta.undo)), default=0)
        self._appliers = ApplierMemo(self.timestamp_max)

    def applier(self, timestamp: int) -> DeltaApplier:
        """Return the applier of the files that a snapshot at `timestamp` sees."""
        return self._appliers.at(timestamp, self._make_applier)

    def _make_applier(self, timestamp: int) -> DeltaApplier:
        undo = [self._file(m) for m in self._meta.undo if m.timestamp_max > timestamp]
        redo = [self._file(m) for m in self._meta.redo if m.timestamp_min <= timestamp]
        return DeltaApplier(redo, timestamp, undo)

    def loads(
        self, timestamps: Sequence[int], column_ids: Set[int] | None
    ) -> Iterator[Callable[[], object]]:
        """Yield what reads the files that appliers of timestamps need, for some columns or all."""
        undo = [m for m in self._meta.undo if m.timestamp_max > min(timestamps)]
        redo = [m for m in self._meta.redo if m.timestamp_min <= max(timestamps)]
        for meta in (*undo, *redo):
            is_asked = column_ids is None or not column_ids.isdisjoint(meta.update_counts)
            if is_asked or meta.delete_count or meta.reinsert_count:
                file = self._file(meta)
                if not file.is_loaded:
                    yield file.load

    def files(self) -> tuple[list[DeltaFile], list[DeltaFile]]:
        """Return the UNDO files, newest first, and the REDO files, oldest first, not read yet."""
        return [self._file(m) for m in self._meta.undo], [self._file(m) for m in self._meta.redo]

    def _file(self, meta: DeltaFileMeta) -> DeltaFile:
        path = f"{self._folder_text}/{meta.ref.name}"  # a Path takes longer than all the rest

        def load() -> tuple[DeltaFile, int]:
            storage, row_count = self._cache.storage, self._meta.row_count
            nbytes = _DELTA_ROW_BYTES * meta.row_count + storage.kept_bytes(meta.ref)
            return DeltaFile(storage, self._folder / meta.ref.name, meta, row_count), nbytes

        file: DeltaFile = self._cache.get_or_load(path, load)
        return file
