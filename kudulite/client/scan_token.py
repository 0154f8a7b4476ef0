"""Scan tokens: picklable pieces of a scan, all at one settled timestamp.

A token names a tablet and a key range, not files: whoever opens it reads the tablet's newest
superblock at the token's time. It dies only when the ancient history mark passes its timestamp.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kudulite.catalog.scan_plan import narrowed, plan_pieces, scan_spec
from kudulite.catalog.snapshot import check_not_ancient, choose_snapshot
from kudulite.catalog.table_store import TableStore
from kudulite.client.environment import default_environment
from kudulite.client.scan import ordered_batches, read_ahead
from kudulite.errors import ConflictError
from kudulite.model.predicate import Predicate
from kudulite.tablet.tablet_scan import block_reads

SPLIT_BYTES_DEFAULT = 64 << 20


@dataclass(frozen=True)
class ScanToken:
    """One piece of a scan. `size_bytes` and `row_count_estimate` are of base data on disk."""

    folder: str
    table_id: str
    tablet_id: str
    columns: tuple[str, ...]
    where: tuple[Predicate, ...]
    timestamp: int
    lower: bytes | None
    upper: bytes | None
    ordered: bool
    size_bytes: int
    row_count_estimate: int

    def open(self) -> Iterator[pa.RecordBatch]:
        """Yield the piece's rows, in the order of `columns`; in key order if the scan is ordered.

        Raises ConflictError when the table was deleted and created again, TimestampError when the
        ancient history mark has passed the token.
        """
        store = TableStore(Path(self.folder), default_environment())
        manifest = store.newest()
        entry = next((e for e in manifest.tablets if e.id == self.tablet_id), None)
        if entry is None or manifest.table_id != self.table_id:
            raise ConflictError(
                f"table {store.name!r}: tablet {self.tablet_id} of a scan token is gone: the table"
                " was deleted, or created again; scan again"
            )
        check_not_ancient(store, manifest, self.timestamp)
        spec = scan_spec(store.name, manifest, self.columns, self.where, self.timestamp)
        spec = narrowed(spec, self.lower, self.upper)
        if self.ordered:
            return ordered_batches(store, [entry], spec)
        return read_ahead(block_reads(store.tablet(entry), spec))

    def to_bytes(self) -> bytes:
        """Return the token as bytes, for whoever cannot pickle it himself."""
        return pickle.dumps(self)

    @staticmethod
    def from_bytes(content: bytes) -> ScanToken:
        """Return the token of `to_bytes`; only for bytes from a process that you trust."""
        token = pickle.loads(content)
        if not isinstance(token, ScanToken):
            raise TypeError(f"expected a scan token, found {type(token).__name__}")
        return token


def make_tokens(
    store: TableStore,
    *,
    columns: Sequence[str] | None,
    where: Sequence[Predicate],
    at: Any,
    ordered: bool,
    split_size_bytes: int | None,
) -> list[ScanToken]:
    """Plan a scan and return its tokens, tablets in order and key ranges ascending in each."""
    timestamp = choose_snapshot(store, at)
    manifest = store.newest()
    spec = scan_spec(store.name, manifest, columns, where, timestamp)
    pieces = plan_pieces(store, manifest, spec, split_size_bytes or SPLIT_BYTES_DEFAULT)
    return [
        ScanToken(
            folder=str(store.folder),
            table_id=manifest.table_id,
            tablet_id=piece.tablet_id,
            columns=spec.names,
            where=tuple(where),
            timestamp=timestamp,
            lower=piece.lower,
            upper=piece.upper,
            ordered=ordered,
            size_bytes=piece.size_bytes,
            row_count_estimate=piece.row_count,
        )
        for piece in pieces
    ]


def pack_tokens(tokens: Sequence[ScanToken], target_bytes: int) -> list[list[ScanToken]]:
    """Put neighbouring tokens together to groups of about `target_bytes` (at least one each)."""
    groups: list[list[ScanToken]] = []
    size = 0
    for token in tokens:
        if not groups or size + token.size_bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(token)
        size += token.size_bytes
    return groups
