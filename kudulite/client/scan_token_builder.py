"""Scan token builder, in kudu-python's words; the tokens are those of `Table.scan_tokens`.

builder = table.scan_token_builder().set_fault_tolerant()
for token in builder.build():
    token.into_kudu_scanner().read_all_tuples()
"""

from __future__ import annotations

from typing import Self

from kudulite.catalog.table_store import TableStore
from kudulite.client.scan_settings import ScanSettings
from kudulite.client.scan_token import ScanToken, make_scan_tokens
from kudulite.errors import OptionError


class ScanTokenBuilder(ScanSettings):
    """Describes a scan and cuts it into tokens; made by `Table.scan_token_builder`."""

    def __init__(self, store: TableStore) -> None:
        super().__init__(store)
        self._split_bytes: int | None = None

    def set_split_size_bytes(self, split_size_bytes: int) -> Self:
        """Cut tablets that are larger than this (on disk, of the columns read) by key range."""
        if split_size_bytes <= 0:
            raise OptionError(f"split size of {split_size_bytes} bytes is not above 0")
        self._split_bytes = split_size_bytes
        return self

    def build(self) -> list[ScanToken]:
        """Return the tokens, all of one moment; the builder may be used again."""
        return make_scan_tokens(self._store, self._checked(), self._split_bytes)
