"""Scan tokens: picklable pieces of a scan, all at one settled timestamp.

A token names a tablet and a key range, not files: whoever opens it reads the tablet's newest
superblock at the token's time. It dies only when the ancient history mark passes its timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from kudulite.catalog.environment import default_environment
from kudulite.catalog.history import check_not_ancient, tablet_at
from kudulite.catalog.manifest import TabletEntry
from kudulite.catalog.planned_columns import (
    ColumnIds,
    in_schema,
    planned_columns,
    schema_as_planned,
    with_planned_types,
)
from kudulite.catalog.scan_plan import KeyBounds, narrowed, plan_pieces, scan_spec, tightest
from kudulite.catalog.snapshot import choose_snapshot
from kudulite.catalog.table_store import TableStore
from kudulite.client.pickled_token import PickledToken
from kudulite.client.row_reader import RowReader
from kudulite.client.scan import ordered_batches, read_ahead
from kudulite.errors import ConflictError
from kudulite.model.predicate import Predicate
from kudulite.model.schema import Column
from kudulite.rowset.scan_spec import ScanSpec
from kudulite.tablet.tablet_scan import block_reads, scan_ordered

SPLIT_BYTES_DEFAULT = 64 << 20


@dataclass(frozen=True)
class ScanToken(PickledToken):
    """One piece of a scan. `size_bytes` and `row_count_estimate` are of base data on disk.

    `column_ids` are what the names meant when the scan was planned: a column that is renamed or
    widened later is still read under its old name, in its old type.
    """

    folder: str
    table_id: str
    tablet_id: str
    columns: tuple[str, ...]
    where: tuple[Predicate, ...]
    column_ids: ColumnIds
    timestamp: int
    lower: bytes | None
    upper: bytes | None
    ordered: bool
    size_bytes: int
    row_count_estimate: int

    def open(self) -> Iterator[pa.RecordBatch]:
        """Yield the piece's rows, in the order of `columns`; in key order if the scan is ordered.

        Raises ConflictError when the table was deleted and created again, or a column of the scan
        was dropped, TimestampError when the ancient history mark has passed the token.
        """
        store, entry, spec = self._plan()
        if self.ordered:
            batches = ordered_batches(store, [entry], spec)
        else:
            batches = read_ahead(block_reads(tablet_at(store, entry, spec.timestamp), spec))
        planned = with_planned_types(spec.schema, self.column_ids).arrow_schema(spec.names)
        return (in_schema(batch, planned) for batch in batches)

    def key_after(self, row_count: int) -> tuple[bytes | None, int]:
        """Return the encoded key of the row that `row_count` rows of the piece come before.

        And how many rows that are; where the piece has no more, None and how many it has. The keys
        of so many rows are read. What is below the key and what is not are pieces of the piece
        (`lower` and `upper`), the same ones whenever it is asked again. Raises as `open` does.
        """
        store, entry, spec = replace(self, columns=())._plan()
        tablet = tablet_at(store, entry, spec.timestamp)
        passed = 0
        for rows in scan_ordered(tablet, spec).open():
            assert rows.keys is not None, "an ordered scan has keys"
            if passed + len(rows.keys) > row_count:
                return rows.keys[row_count - passed], row_count
            passed += len(rows.keys)
        return None, passed

    def into_kudu_scanner(self) -> TokenScanner:
        """Return a scanner of the piece, in kudu-python's words."""
        return TokenScanner(self)

    def _plan(self) -> tuple[TableStore, TabletEntry, ScanSpec]:
        store = TableStore(Path(self.folder), default_environment())
        manifest = store.newest()
        entry = manifest.readable_entry(self.tablet_id)
        if manifest.table_id == self.table_id:
            check_not_ancient(store, manifest, self.timestamp)
        if entry is None or manifest.table_id != self.table_id:
            raise ConflictError(
                f"table {store.name!r}: tablet {self.tablet_id} of a scan token is gone: the table"
                " was deleted, or created again; scan again"
            )
        schema = schema_as_planned(store.name, self.column_ids, manifest.schema)
        manifest = replace(manifest, schema=schema)
        spec = scan_spec(store.name, manifest, self.columns, self.where, self.timestamp)
        return store, entry, narrowed(spec, self.lower, self.upper)

    def serialize(self) -> bytes:
        """Do as `to_bytes`, in kudu-python's words."""
        return self.to_bytes()


class TokenScanner(RowReader):
    """The rows of one token batch by batch; made by `ScanToken.into_kudu_scanner`."""

    def __init__(self, token: ScanToken) -> None:
        super().__init__()
        self._token = token
        self._spec: ScanSpec | None = None

    def _open_batches(self) -> Iterator[pa.RecordBatch]:
        return self._token.open()

    def _projected(self) -> Sequence[Column]:
        if self._spec is None:
            self._spec = self._token._plan()[2]
        schema = with_planned_types(self._spec.schema, self._token.column_ids)
        return [schema.column(name) for name in self._spec.names]


def make_tokens(
    store: TableStore,
    *,
    columns: Sequence[str] | None,
    where: Sequence[Predicate],
    at: Any,
    ordered: bool,
    split_size_bytes: int | None,
    bounds: KeyBounds = (None, None),
) -> list[ScanToken]:
    """Plan a scan and return its tokens, tablets in order and key ranges ascending in each."""
    timestamp = choose_snapshot(store, at)
    manifest = store.newest()
    spec = narrowed(scan_spec(store.name, manifest, columns, where, timestamp), *bounds)
    column_ids = planned_columns(manifest.schema, spec.names, where)
    pieces = plan_pieces(store, manifest, spec, split_size_bytes or SPLIT_BYTES_DEFAULT)
    return [
        ScanToken(
            folder=str(store.folder),
            table_id=manifest.table_id,
            tablet_id=piece.tablet_id,
            columns=spec.names,
            where=tuple(where),
            column_ids=column_ids,
            timestamp=timestamp,
            lower=tightest(max, bounds[0], piece.lower),
            upper=tightest(min, bounds[1], piece.upper),
            ordered=ordered,
            size_bytes=piece.size_bytes,
            row_count_estimate=piece.row_count,
        )
        for piece in pieces
    ]


class SizedToken(Protocol):
    """A scan token or a change token."""

    @property
    def size_bytes(self) -> int:
        """What it reads, an estimate."""


T = TypeVar("T", bound=SizedToken)


def pack_tokens(tokens: Sequence[T], target_bytes: int) -> list[list[T]]:
    """Put neighbouring tokens together to groups of about `target_bytes` (at least one each)."""
    groups: list[list[T]] = []
    size = 0
    for token in tokens:
        if not groups or size + token.size_bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(token)
        size += token.size_bytes
    return groups
