"""Scan tokens of kudu-python's programs, over those of the engine.

    for token in table.scan_token_builder().set_fault_tolerant().build():
        sent = token.serialize()                                       bytes, for any process
    client.deserialize_token_into_scanner(sent).read_all_tuples()      there

**Threads**: one at a time.

**Source**: Kudu python/kudu/client.pyx.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Self

import pyarrow as pa

from kudulite.kudu.errors import KuduInvalidArgument, in_kudu_terms
from kudulite.kudu.scanner import RowReader, ScanSettings
from kudulite.kudu.servers import Tablet, TabletServer
from kudulite.model.schema import Column
from kudulite.reads import tokens
from kudulite.storage.storage import as_path


@in_kudu_terms
class TokenScanner(RowReader):
    """A scanner of one token; made by `ScanToken.into_kudu_scanner`."""

    def __init__(self, token: tokens.ScanToken) -> None:
        self._token = token
        self._server = _server_of(token)

    def _open_batches(self) -> Iterator[pa.RecordBatch]:
        return self._token.open()

    @cached_property
    def _columns(self) -> Sequence[Column]:
        return self._token._read().columns

    def _projected(self) -> Sequence[Column]:
        return self._columns


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

    def deserialize_into_scanner(self, client: object, serialized_token: bytes) -> TokenScanner:
        """Return a scanner of a serialized token; tokens name their table's folder."""
        return TokenScanner(tokens.ScanToken.from_bytes(serialized_token))

    def _given(self) -> tokens.ScanToken:
        if self._token is None:
            raise KuduInvalidArgument("an empty token; make tokens with ScanTokenBuilder.build()")
        return self._token


@in_kudu_terms
class ScanTokenBuilder(ScanSettings):
    """Describes a scan and cuts it into tokens; made by `Table.scan_token_builder`."""

    _split_bytes: int | None = None

    def set_split_size_bytes(self, split_size_bytes: int) -> Self:
        """Cut tablets that are larger than this (on disk, of the columns read) by key range."""
        if split_size_bytes <= 0:
            raise KuduInvalidArgument(f"split size of {split_size_bytes} bytes is not above 0")
        self._split_bytes = split_size_bytes
        return self

    def set_timout_millis(self, millis: int) -> Self:
        """Do as `set_timeout_millis`; the name is kudu-python's."""
        return self.set_timeout_millis(millis)

    def build(self) -> list[ScanToken]:
        """Return the tokens, all of one moment; the builder may be used again."""
        made = tokens.make_scan_tokens(self._store, self._checked(), self._split_bytes)
        return [ScanToken(token) for token in made]
