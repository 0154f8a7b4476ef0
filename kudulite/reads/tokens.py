"""Tokens: picklable pieces of a planned read, to be opened in any process.

    ScanToken      rows of a key range of a tablet, at one settled moment
    ChangeToken    changes of a key range of some tablets, in one settled window
    RowSetToken    rows that a native plan leaves over: of rowsets, by position

    for token in table.scan_tokens(…):      picklable
        token.open()                        Arrow batches, in any process

Scan and change tokens name tablets and key ranges, not files. They read the newest superblock of
their tablets and expire only when the ancient history mark passes their oldest moment.

A rowset token names a version of its tablet. It reads exactly the rows that a plan left over,
whatever is compacted meanwhile, and expires when the files of that version are removed: the grace
time after they were replaced. It never needs the log.
"""

from __future__ import annotations

import errno
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from kudulite.chain.manifest import Manifest, TabletEntry
from kudulite.chain.partition import KeyBounds
from kudulite.errors import ConflictError, StorageError, UsageError
from kudulite.model.condition import Condition
from kudulite.model.hybrid_time import Timestamp
from kudulite.model.types import parse_type
from kudulite.reads.scan import change_batches, read_ahead, row_batches
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec
from kudulite.storage.address import parse_address
from kudulite.storage.json_form import JsonForm, Stored
from kudulite.storage.storage import as_path
from kudulite.table.environment import environment_at
from kudulite.table.read_request import (
    Read,
    ReadPlan,
    ReadRequest,
    RowPlan,
    plan_changes,
    plan_rows,
    read_of,
)
from kudulite.table.scan_plan import (
    PlannedColumn,
    ScanPiece,
    Spec,
    in_schema,
    known_entries,
    plan_diff_pieces,
    plan_pieces,
)
from kudulite.table.snapshot import check_not_ancient, tablet_at
from kudulite.table.table_names import replaced_table
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet_scan import (
    BlockRead,
    ChosenRows,
    DeltaRead,
    chosen_reads,
    ordered_reads,
)

SPLIT_BYTES_DEFAULT = 64 << 20


@dataclass(frozen=True)
class Token(ABC, Generic[Spec]):
    """A piece of a plan. `size_bytes` and `row_count_estimate` are of base data on disk."""

    plan: ReadPlan[Spec]
    size_bytes: int
    row_count_estimate: int

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read, in order."""
        return self.plan.request.columns or ()

    @property
    def timestamp(self) -> Timestamp:
        """The HybridTime of the snapshot, or of the end of the window; inclusive."""
        return Timestamp(self.plan.timestamp)

    def of_columns(self, columns: Sequence[str], where: Sequence[Condition] = ()) -> Self:
        """Return a token of other columns of the plan, and of the rows that match `where`."""
        return replace(self, plan=self.plan.of_columns(columns, where))

    def open(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows, in the order of `columns`, as the newest version of the table has them.

        Scan tokens of an ordered scan and change tokens give them in key order; change tokens with
        the columns of `Changes.schema`.

        Raises ConflictError when the table was deleted and created again, a column was dropped, or
        the files of a rowset token were removed; TimestampError when the ancient history mark has
        passed a scan or change token.
        """
        read = self._read()
        schema = read.schema
        batches = read.stream(self._batches, self._read)
        return (in_schema(batch, schema) for batch in batches)

    def to_bytes(self) -> bytes:
        """Return the token as bytes, for another process."""
        return pickle.dumps(self)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the token of `to_bytes`; only for bytes from a process that you trust.

        Raises TypeError for anything but a token of this kind."""
        token = pickle.loads(content)
        if not isinstance(token, cls):
            raise TypeError(f"expected a {cls.__name__}, found {type(token).__name__}")
        return token

    def _read(self) -> Read[Spec]:
        """Bind the plan to the newest version."""
        store = TableStore(as_path(self.plan.folder), environment_at(self.plan.storage))
        store = replaced_table(store, self.plan.table_id)
        manifest = store.newest()
        self._check(store, manifest)
        return read_of(store, manifest, self.plan, self._bounds)

    @property
    def _bounds(self) -> KeyBounds:
        return None, None

    @abstractmethod
    def _check(self, store: TableStore, manifest: Manifest) -> None:
        """Raise ConflictError or TimestampError where the token has expired."""

    @abstractmethod
    def _batches(self, read: Read[Spec]) -> Iterator[pa.RecordBatch]: ...


@dataclass(frozen=True)
class KeyRangeToken(Token[Spec]):
    """A token of the encoded keys [`lower`, `upper`) of tablets; None is unbounded.

    Tablets of one token may hold the same keys.
    """

    tablet_ids: tuple[str, ...]
    lower: bytes | None
    upper: bytes | None

    @property
    def _bounds(self) -> KeyBounds:
        return self.lower, self.upper

    def _check(self, store: TableStore, manifest: Manifest) -> None:
        is_same = manifest.table_id == self.plan.table_id
        if is_same:
            check_not_ancient(store, manifest, self.plan.oldest)
        if not is_same or known_entries(manifest, self.tablet_ids) is None:
            kind = "scan" if isinstance(self, ScanToken) else "change"
            raise ConflictError(
                f"table {store.name!r}: tablet {', '.join(self.tablet_ids)} of a {kind} token is"
                " gone: the table was deleted, or created again; read it again"
            )

    def _entries(self, manifest: Manifest) -> list[TabletEntry]:
        return known_entries(manifest, self.tablet_ids) or []


@dataclass(frozen=True)
class ScanToken(KeyRangeToken[ScanSpec]):
    """One piece of a scan."""

    @property
    def tablet_id(self) -> str:
        """The tablet whose rows are read."""
        return self.tablet_ids[0]

    def _batches(self, read: Read[ScanSpec]) -> Iterator[pa.RecordBatch]:
        return row_batches(read, self._entries(read.manifest))

    def key_after(self, row_count: int) -> tuple[bytes | None, int]:
        """Return the encoded key of the row that `row_count` rows of the piece precede.

        Also returns how many rows those are. Where the piece has no more rows, the key is None and
        the count is that of all rows. The keys of so many rows are read. The rows below the key and
        the rest are pieces of the piece (see `lower` and `upper`), the same ones at every call.
        Raises as `open` does.
        """
        read = self.of_columns((), self.plan.request.where)._read()
        (entry,) = self._entries(read.manifest)
        tablet = tablet_at(read.store, entry, self.plan.timestamp)
        passed = 0
        for window in ordered_reads([tablet], read.spec):
            rows = window.rows()
            assert rows.keys is not None, "an ordered scan has keys"
            if passed + len(rows.keys) > row_count:
                return rows.keys[row_count - passed], row_count
            passed += len(rows.keys)
        return None, passed


@dataclass(frozen=True)
class ChangeToken(KeyRangeToken[DiffSpec]):
    """One piece of a diff scan; its `size_bytes` are of base data that may have to be read."""

    def _batches(self, read: Read[DiffSpec]) -> Iterator[pa.RecordBatch]:
        return change_batches(read, [self._entries(read.manifest)])


@dataclass(frozen=True)
class RowSetToken(Token[ScanSpec], JsonForm):
    """Rows of some rowsets of one tablet version."""

    plan: Annotated[ReadPlan[ScanSpec], Stored(is_kept=False)]
    tablet: TabletEntry
    rows: tuple[ChosenRows, ...]

    def narrowed(self, columns: Sequence[str], where: Sequence[Condition]) -> RowSetToken:
        """Return a token of fewer columns and of rows that also match `where`."""
        return self.of_columns(columns, (*self.plan.request.where, *where))

    def _check(self, store: TableStore, manifest: Manifest) -> None:
        if manifest.table_id != self.plan.table_id:
            raise self._expired(store, "the table was deleted and created again")

    def _batches(self, read: Read[ScanSpec]) -> Iterator[pa.RecordBatch]:
        return self.batches_of([self], read)

    @staticmethod
    def batches_of(tokens: Sequence[RowSetToken], read: Read[ScanSpec]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one plan's tokens."""
        try:
            blocks = (block for token in tokens for block in token._reads(read))
            yield from read_ahead(blocks, 0, read.store.storage.requests_at_once)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            raise tokens[0]._expired(read.store, str(error)) from error

    def _reads(self, read: Read[ScanSpec]) -> Iterator[BlockRead | DeltaRead]:
        tablet = read.store.tablet(self.tablet)
        found = (tablet.rowset(chosen.rowset_id) for chosen in self.rows)
        loads = (partial(rowset.open_for, read.spec) for rowset in found if rowset is not None)
        read.store.storage.prefetch(loads)
        for chosen in self.rows:
            rowset = tablet.rowset(chosen.rowset_id)
            if rowset is None:
                raise UsageError(
                    f"table {read.store.name!r}: a token names rowset {chosen.rowset_id!r}, which"
                    " the version that was planned with does not have; it is of another table, or"
                    " was changed: plan the read again"
                )
            yield from chosen_reads(
                rowset, chosen.positions(rowset, self.plan.timestamp), read.spec
            )

    def _expired(self, store: TableStore, reason: str) -> ConflictError:
        return ConflictError(
            f"table {store.name!r}: a version that was planned with can no longer be read"
            f" ({reason}); files that were replaced stay for the grace time: read the table again"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a form for readers that do not trust its sender; predicates are left out."""
        return {
            "table_id": self.plan.table_id,
            "columns": list(self.columns),
            "column_ids": [[c.name, c.id, str(c.type)] for c in self.plan.column_ids],
            "timestamp": self.plan.timestamp,
            **super().to_json(),
        }

    @staticmethod
    def of_table(
        folder: str, value: dict[str, Any], storage_options: Mapping[str, str] | None = None
    ) -> RowSetToken:
        """Build a token from `to_json`'s form, of the table in `folder`."""
        address = parse_address(folder, storage_options)
        plan = RowPlan(
            folder=str(address.path),
            storage=address.storage,
            table_id=value["table_id"],
            request=ReadRequest(tuple(value["columns"]), at=value["timestamp"]),
            column_ids=tuple(
                PlannedColumn(name, column_id, parse_type(column_type))
                for name, column_id, column_type in value["column_ids"]
            ),
        )
        return RowSetToken.from_json(value, plan=plan)


def read_tokens(tokens: Sequence[RowSetToken], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows of one plan's tokens; the newest version is read only once.

    Raises as `Token.open` does.
    """
    if tokens:
        read = tokens[0].of_columns(columns)._read()
        batches = RowSetToken.batches_of(tokens, read)
        yield from (in_schema(batch, read.schema) for batch in batches)


def make_scan_tokens(
    store: TableStore, request: ReadRequest, split_bytes: int | None
) -> list[ScanToken]:
    """Plan a scan and return its tokens, tablets in order and key ranges ascending in each."""
    read = plan_rows(store, request)
    pieces = plan_pieces(store, read.manifest, read.spec, split_bytes or SPLIT_BYTES_DEFAULT)
    return _tokens(ScanToken, read, pieces)


def make_change_tokens(
    store: TableStore, request: ReadRequest, split_bytes: int | None
) -> list[ChangeToken]:
    """Plan a diff scan and return its tokens, tablets in order and key ranges ascending in each."""
    read = plan_changes(store, request)
    pieces = plan_diff_pieces(store, read.manifest, read.spec, split_bytes or SPLIT_BYTES_DEFAULT)
    return _tokens(ChangeToken, read, pieces)


KindOfToken = TypeVar("KindOfToken", bound=KeyRangeToken[Any])


def _tokens(
    kind: type[KindOfToken], read: Read[Spec], pieces: Sequence[ScanPiece]
) -> list[KindOfToken]:
    return [
        kind(
            plan=read.plan,
            size_bytes=piece.size_bytes,
            row_count_estimate=piece.row_count,
            tablet_ids=piece.tablet_ids,
            lower=piece.lower,
            upper=piece.upper,
        )
        for piece in pieces
    ]


class Sized(Protocol):
    """A token, or a piece of a backup."""

    @property
    def size_bytes(self) -> int:
        """The estimated size of the base data that is read."""


T = TypeVar("T", bound=Sized)


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
