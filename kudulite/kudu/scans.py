"""Scans of kudu-python's programs: columns to compare, scanners, tokens, and where they are read.

    scanner = table.scanner().add_predicate(table["a"] > 0)       a Column makes a Predicate
    builder = table.scan_token_builder()                          its tokens are read anywhere

There are no servers: the directory of tables stands for the one tablet server, which leads all
tablets, so that programs that ask where a token is best read have an answer.

**Threads**: one at a time, as the engine's scanners.

**Source**: Kudu python/kudu/client.pyx.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kudulite.client import scanner, tokens
from kudulite.client.client import Client
from kudulite.client.table import Table, store_of
from kudulite.kudu.cells import choice
from kudulite.kudu.errors import KuduInvalidArgument, in_kudu_terms
from kudulite.kudu.schema import ColumnSchema, PartialRow, Schema
from kudulite.kudu.util import to_utc
from kudulite.model.condition import ColumnExpression, Predicate
from kudulite.storage.storage import as_path

LEADER_ONLY, CLOSEST_REPLICA, FIRST_REPLICA = 0, 1, 2
READ_LATEST, READ_AT_SNAPSHOT, READ_YOUR_WRITES = 0, 1, 2
_REPLICA_SELECTIONS = dict(enumerate(scanner.REPLICA_SELECTIONS))
_READ_MODES = dict(enumerate(scanner.READ_MODES))


@dataclass(frozen=True)
class TabletServer:
    """The place of all tablets: the directory of tables on this machine."""

    folder: Path

    def uuid(self) -> str:
        """Return the directory."""
        return str(self.folder)

    def hostname(self) -> str:
        """Return the name of this machine."""
        return socket.gethostname()

    def port(self) -> int:
        """Return 0: nothing listens."""
        return 0


@dataclass(frozen=True)
class Replica:
    """The one replica of a tablet: its files."""

    _server: TabletServer

    def is_leader(self) -> bool:
        """Return True."""
        return True

    def ts(self) -> TabletServer:
        """Return the place of the files."""
        return self._server


@dataclass(frozen=True)
class Tablet:
    """A tablet that a scan token reads."""

    _id: str
    _server: TabletServer

    def id(self) -> str:
        """Return the tablet's id."""
        return self._id

    def replicas(self) -> list[Replica]:
        """Return the one replica."""
        return [Replica(self._server)]


class Column(ColumnExpression):
    """A column of a table, to compare; `spec` is its ColumnSchema, `parent` the table."""

    __slots__ = ("parent", "spec")

    def __init__(self, parent: Table, spec: ColumnSchema) -> None:
        super().__init__(spec.name)
        self.parent = parent
        self.spec = spec

    def __repr__(self) -> str:
        return f"Column({self.name}, parent={self.parent.name}, type={self.spec.type.name})"

    def __hash__(self) -> int:
        return hash(self.name)

    def _value(self, value: Any) -> Any:
        return self.spec.type.new_value(value).value

    def __eq__(self, value: Any) -> Predicate:  # type: ignore[override]
        return super().__eq__(self._value(value))

    def __ne__(self, value: Any) -> Predicate:  # type: ignore[override]
        return super().__ne__(self._value(value))

    def __lt__(self, value: Any) -> Predicate:
        return super().__lt__(self._value(value))

    def __le__(self, value: Any) -> Predicate:
        return super().__le__(self._value(value))

    def __gt__(self, value: Any) -> Predicate:
        return super().__gt__(self._value(value))

    def __ge__(self, value: Any) -> Predicate:
        return super().__ge__(self._value(value))

    def in_list(self, values: Iterable[Any]) -> Predicate:
        """Return the predicate "equal to one of `values`". Raises TypeError."""
        return super().in_list([self._value(value) for value in values])


class _Settings(scanner.ScanSettings):
    """The settings of a scan, by name or number."""

    def __init__(self, table: Table) -> None:
        super().__init__(store_of(table))

    def set_read_mode(self, read_mode: str | int) -> Any:
        """Set the read mode, by name or READ_ constant."""
        return super().set_read_mode(choice(read_mode, "read mode", _READ_MODES))

    def set_selection(self, replica_selection: str | int) -> Any:
        """Check the policy, by name or constant: there is one replica."""
        policy = choice(replica_selection, "replica selection policy", _REPLICA_SELECTIONS)
        return super().set_selection(policy)

    def set_snapshot(self, timestamp: Any, format: str | None = None) -> Any:
        """Read as of a moment: a datetime, text in a `format`, or a HybridTime."""
        if isinstance(timestamp, str) and not format:
            raise KuduInvalidArgument(
                "To use a string timestamp you must provide a format. See the strftime(3)"
                " documentation."
            )
        if not isinstance(timestamp, int):
            timestamp = to_utc(timestamp, format)
            if timestamp.year < 1970:
                raise KuduInvalidArgument("Snapshot Timestamps be greater than the unix epoch.")
        return super().set_snapshot(timestamp)

    def new_bound(self) -> PartialRow:
        """Return an empty row; set its key columns to use it as a bound."""
        return Schema(self._schema).new_row()

    def add_lower_bound(self, bound: Any) -> Any:
        """Read only keys at or above `bound`: a row, dict, tuple or list."""
        return super().add_lower_bound(self._row(bound))

    def add_exclusive_upper_bound(self, bound: Any) -> Any:
        """Read only keys below `bound`."""
        return super().add_exclusive_upper_bound(self._row(bound))

    def _row(self, bound: Any) -> PartialRow:
        return bound if isinstance(bound, PartialRow) else Schema(self._schema).new_row(bound)


class _Reader(scanner.RowReader):
    """Rows batch by batch, with their columns as a Schema."""

    _server: TabletServer

    def get_projection_schema(self) -> Schema:  # type: ignore[override]
        """Return the columns of the rows, without a key."""
        return Schema(self._projected())

    def get_current_server(self) -> TabletServer:
        """Return the place that the rows are read from."""
        return self._server

    def to_pandas(self, index: Any = None, coerce_float: bool = False) -> Any:
        """Return the rows that are left as a DataFrame with the given index column or columns.

        Times have the unit of kudu-python's frames, nanoseconds, if all of them are in its range.
        """
        import pandas

        frame = super().to_pandas(coerce_float=coerce_float)
        for name in frame.select_dtypes(["datetimetz", "datetime"]):
            try:
                frame[name] = frame[name].dt.as_unit("ns")
            except pandas.errors.OutOfBoundsDatetime:
                continue
        return frame if index is None else frame.set_index(index)


@in_kudu_terms
class Scanner(_Settings, _Reader, scanner.Scanner):
    """A scan that is described, opened and read; made by `Table.scanner`."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._server = TabletServer(table.path.parent)


@in_kudu_terms
class TokenScanner(_Reader, tokens.TokenScanner):
    """A scanner of one token; made by `ScanToken.into_kudu_scanner`."""

    def __init__(self, token: tokens.ScanToken) -> None:
        super().__init__(token)
        self._server = _server_of(token)


def _server_of(token: tokens.ScanToken) -> TabletServer:
    return TabletServer(as_path(token.plan.folder).parent)


class ScanToken:
    """A piece of a scan, to be read here or sent to another process as bytes."""

    def __init__(self, token: tokens.ScanToken | None = None) -> None:
        self._token = token

    def into_kudu_scanner(self) -> TokenScanner:
        """Return a scanner of the piece."""
        return TokenScanner(self._given())

    def tablet(self) -> Tablet:
        """Return the tablet whose rows are read."""
        token = self._given()
        return Tablet(token.tablet_id, _server_of(token))

    def serialize(self) -> bytes:
        """Return the token as bytes; open them only if a trusted process made them."""
        return self._given().to_bytes()

    def deserialize_into_scanner(self, client: Client, serialized_token: bytes) -> TokenScanner:
        """Return a scanner of a serialized token; tokens name their table's folder."""
        return TokenScanner(tokens.ScanToken.from_bytes(serialized_token))

    def _given(self) -> tokens.ScanToken:
        if self._token is None:
            raise KuduInvalidArgument("an empty token; make tokens with ScanTokenBuilder.build()")
        return self._token


@in_kudu_terms
class ScanTokenBuilder(_Settings, tokens.ScanTokenBuilder):
    """Describes a scan and cuts it into tokens; made by `Table.scan_token_builder`."""

    def set_timout_millis(self, millis: int) -> ScanTokenBuilder:
        """Do as `set_timeout_millis`; the name is kudu-python's."""
        return self.set_timeout_millis(millis)

    def build(self) -> list[ScanToken]:  # type: ignore[override]
        """Return the tokens, all of one moment."""
        return [ScanToken(token) for token in super().build()]
