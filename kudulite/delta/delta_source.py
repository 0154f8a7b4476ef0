"""DeltaSource: what readers of deltas know of a DeltaFile and of a DeltaMemStore's snapshot.

It stands alone because the applier of deltas and their history read both kinds of sources alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from kudulite.delta.delta_file import DeltaColumn


class SourceStatistics(Protocol):
    """Statistics of a source of deltas, known before it is opened."""

    @property
    def row_count(self) -> int:
        """Number of changes."""

    @property
    def timestamp_min(self) -> int:
        """The timestamp of the oldest change."""

    @property
    def timestamp_max(self) -> int:
        """The timestamp of the newest change."""

    @property
    def delete_count(self) -> int:
        """Number of DELETEs."""

    @property
    def reinsert_count(self) -> int:
        """Number of REINSERTs."""

    @property
    def update_counts(self) -> Mapping[int, int]:
        """How many changes set a column, by its id."""


class DeltaSource(Protocol):
    """A DeltaFile or a snapshot of a DeltaMemStore."""

    @property
    def meta(self) -> SourceStatistics:
        """The statistics of the source."""

    @property
    def rowids(self) -> np.ndarray:
        """int64[n]."""

    @property
    def ops(self) -> np.ndarray:
        """uint8[n]."""

    def timestamps(self) -> np.ndarray | None:
        """Return uint64[n], or None if all changes have the timestamp of `meta`."""

    def columns(self, column_ids: Collection[int]) -> Mapping[int, DeltaColumn]:
        """Return the new values of those columns that the source sets; all are in memory then."""

    def column(self, column_id: int) -> DeltaColumn | None:
        """Return a column's new values."""
