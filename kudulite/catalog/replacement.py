"""What a maintenance operation puts in the place of rowsets, and whether it still fits.

    read:   a b c d          at the version that the operation began with
    built:  a [bc] d         one rowset for b and c, say
    now:    a b' c d e       b has got a REDO file meanwhile, e is new
    fitted: a [bc]' d e      the REDO of b, on the row ids of [bc]

Deltas that arrived keep their row ids where the rows stay where they were (delta compactions), and
go through the operation's row id map where rows moved (merging compactions).

Invariants: (1) a replacement fits only where each rowset that it read is still there with all the
files that it read: REDO may have been appended, nothing else; (2) what arrived is newer than all
that was read.

Source: Kudu tablet.cc, "DoMergeCompactionOrFlush": its second phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kudulite.delta.delta_file import DeltaFileMeta
from kudulite.rowset.merge_compaction import RowIdMap
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.tablet.superblock import Superblock


@dataclass(frozen=True)
class Replacement:
    """Rowsets `outputs` for the rowsets `inputs`, as they were when the operation began.

    Without a `row_map` the rows stayed where they were: outputs[i] stands for inputs[i], by the
    same id. `mark` is the ancient history mark behind which the operation has left history out.
    """

    inputs: tuple[RowSetMeta, ...]
    outputs: tuple[RowSetMeta, ...]
    mark: int
    row_map: RowIdMap | None = None

    def arrived(self, now: Superblock) -> dict[str, tuple[DeltaFileMeta, ...]] | None:
        """Return the REDO files that each input, by id, has got since; None: it does not fit."""
        found = {meta.id: meta for meta in now.rowsets}
        newer = {}
        for meta in self.inputs:
            current = found.get(meta.id)
            if current is None or not _has_grown(meta, current):
                return None
            if self.row_map is not None and current.delete_timestamp != meta.delete_timestamp:
                return None
            newer[meta.id] = current.redo[len(meta.redo) :]
        return newer

    def with_redo(
        self, newer: dict[str, tuple[DeltaFileMeta, ...]], mapped: Sequence[DeltaFileMeta | None]
    ) -> Replacement:
        """Return it with REDO that arrived: `newer` was read, `mapped` is that of each output."""
        inputs = tuple(meta.with_redo(newer.get(meta.id, ())) for meta in self.inputs)
        outputs = tuple(
            meta if redo is None else meta.with_redo((redo,))
            for meta, redo in zip(self.outputs, mapped, strict=True)
        )
        return replace(self, inputs=inputs, outputs=outputs)

    def fitted(self, now: Superblock) -> Superblock | None:
        """Return `now` with the outputs in it; None where something moved that does not fit.

        With a row map all that arrived must have been mapped before.
        """
        newer = self.arrived(now)
        if newer is None or (self.row_map is not None and any(newer.values())):
            return None
        current = {meta.id: meta for meta in now.rowsets}
        outputs = list(self.outputs)
        if self.row_map is None:
            outputs = [
                replace(
                    output.with_redo(newer[output.id]),
                    delete_timestamp=current[output.id].delete_timestamp,
                )
                for output in outputs
            ]
        gone = {meta.id for meta in self.inputs}
        first = min(at for at, meta in enumerate(now.rowsets) if meta.id in gone)
        kept = [meta for meta in now.rowsets if meta.id not in gone]
        return replace(now, rowsets=tuple(kept[:first] + outputs + kept[first:]))


def _has_grown(before: RowSetMeta, now: RowSetMeta) -> bool:
    """Whether `now` is `before` with nothing but newer REDO, or an end."""
    is_same = now.base == before.base and now.undo == before.undo
    return is_same and now.redo[: len(before.redo)] == before.redo
