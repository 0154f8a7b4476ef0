"""StagedTablet: what one part of a bulk write changes in one tablet, before a commit lists it.

    resolver ── new rowsets, REDO files, tombstones ──> StagedTablet ──> commit: superblock
                                                             └── conflict check: without some rows

**Invariants**: parts are never changed: a conflict check returns new ones, and names their files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.storage.names import ROWSET_FOLDER
from kudulite.storage.storage import FileRef
from kudulite.tablet.row_effects import WriteCounts
from kudulite.tablet.tombstones import StagedTombstones


@dataclass(frozen=True)
class StagedDelta:
    """A REDO file for an existing rowset."""

    rowset_id: str
    meta: DeltaFileMeta

    @property
    def is_no_op(self) -> bool:
        """Whether the file changes nothing.

        Its rows are key-only upserts, all null under ignore_null, or equal to those of the table.
        It is kept until the commit only to check that its rows still exist.
        """
        return not self.meta.delete_count and not any(self.meta.update_counts.values())


@dataclass(frozen=True)
class StagedTablet:
    """One part of a write in one tablet; small and picklable.

    Parts of a write apply in order.
    """

    tablet_id: str
    rowsets: tuple[RowSetMeta, ...] = ()
    deltas: tuple[StagedDelta, ...] = ()
    counts: WriteCounts = field(default_factory=WriteCounts)
    tombstones: StagedTombstones | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the part changes nothing."""
        return not self.rowsets and not self.deltas and self.tombstones is None

    def files(self) -> Iterator[tuple[str, FileRef]]:
        """Yield the part's files, with their paths in the tablet's folder."""
        for meta in self.rowsets:
            for ref in meta.file_refs:
                yield f"{ROWSET_FOLDER}/{meta.id}/{ref.name}", ref
        for delta in self.deltas:
            yield f"{ROWSET_FOLDER}/{delta.rowset_id}/{delta.meta.ref.name}", delta.meta.ref
        if self.tombstones is not None:
            yield self.tombstones.meta.ref.name, self.tombstones.meta.ref

    def without_no_ops(self) -> StagedTablet:
        """Return the part without the files that change nothing, after the last conflict check."""
        if not any(delta.is_no_op for delta in self.deltas):
            return self
        return replace(self, deltas=tuple(d for d in self.deltas if not d.is_no_op))

    def with_masked_rowset(self, masked: RowSetMeta, masked_count: int) -> StagedTablet:
        """Return the part with one of its rowsets replaced, `masked_count` rows fewer inserted."""
        rowsets = tuple(masked if r.id == masked.id else r for r in self.rowsets)
        counts = self.counts + WriteCounts(inserted=-masked_count)
        return replace(self, rowsets=rowsets, counts=counts)

    def with_delta(
        self, old: StagedDelta, new: StagedDelta | None, counts: WriteCounts
    ) -> StagedTablet:
        """Return the part with `old` replaced (or dropped), and `counts` added to its own."""
        replaced = (new if delta is old else delta for delta in self.deltas)
        deltas = tuple(delta for delta in replaced if delta is not None)
        return replace(self, deltas=deltas, counts=self.counts + counts)
