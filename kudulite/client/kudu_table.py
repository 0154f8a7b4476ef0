"""KuduTable: what kudu-python's Table has beside what ours has anyway."""

from __future__ import annotations

from kudulite.catalog.table_store import TableStore
from kudulite.client.scan_token_builder import ScanTokenBuilder
from kudulite.client.scanner import Scanner


class KuduTable:
    """The part of `Table` that is there for programs written for kudu-python."""

    _store: TableStore

    @property
    def id(self) -> str:
        """What tells the table from one of the same name that is created later."""
        return self._store.newest().table_id

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self._store.newest().schema)

    def scanner(self) -> Scanner:
        """Return a scanner to set up, open, and read row by row; see also `scan`."""
        return Scanner(self._store)

    def scan_token_builder(self) -> ScanTokenBuilder:
        """Return a builder of scan tokens to set up; see also `scan_tokens`."""
        return ScanTokenBuilder(self._store)
