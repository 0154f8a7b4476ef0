"""The staged part of a write in one tablet, not yet visible: new rowsets and new REDO files.

    staging folder of a part := <rowset id>/base-… key-… bloom-…     a new rowset
                                <rowset id>/redo-…                  a delta of a rowset, old or new
                                tombstone-…                         what an ordered write deletes

A commit stamps the entries with its timestamp and renames the files into the tablet's folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.collapse import WriteCounts
from kudulite.tablet.tombstones import StagedTombstones


@dataclass(frozen=True)
class StagedDelta:
    """A REDO file for an existing rowset."""

    rowset_id: str
    meta: DeltaFileMeta

    @property
    def is_no_op(self) -> bool:
        """Whether it changes nothing, because its rows are key-only upserts or all null under
        ignore_null. It is kept until the commit only to check that its rows still exist.
        """
        return not self.meta.delete_count and not any(self.meta.update_counts.values())


@dataclass(frozen=True)
class StagedTablet:
    """One part of a write in one tablet; small and picklable.

    `folder` is relative to the table's folder. Parts of a write apply in their order.
    """

    tablet_id: str
    folder: str
    rowsets: tuple[RowSetMeta, ...] = ()
    deltas: tuple[StagedDelta, ...] = ()
    counts: WriteCounts = field(default_factory=WriteCounts)
    tombstones: StagedTombstones | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the part changes nothing."""
        return not self.rowsets and not self.deltas and self.tombstones is None

    def without_no_ops(self) -> StagedTablet:
        """Return the part without the files that change nothing, after the last conflict check."""
        return replace(self, deltas=tuple(d for d in self.deltas if not d.is_no_op))

    def with_masked_rowset(self, masked: RowSetMeta, masked_count: int) -> StagedTablet:
        """Return the part with one of its rowsets replaced, `masked_count` rows fewer inserted."""
        rowsets = tuple(masked if r.id == masked.id else r for r in self.rowsets)
        counts = self.counts + WriteCounts(inserted=-masked_count)
        return replace(self, rowsets=rowsets, counts=counts)

    def with_delta(
        self, old: StagedDelta, new: StagedDelta | None, removed: WriteCounts
    ) -> StagedTablet:
        """Return the part with `old` replaced (or dropped) and `removed` rows no longer counted."""
        deltas = [new if delta is old else delta for delta in self.deltas]
        negative = WriteCounts(0, -removed.updated, -removed.deleted, 0)
        return replace(
            self,
            deltas=tuple(delta for delta in deltas if delta is not None),
            counts=self.counts + negative,
        )
