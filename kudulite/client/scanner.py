"""Scanner: a scan in kudu-python's words; the scan itself is `Scan`.

scanner = table.scanner().add_predicate(table["host"] == "a")
scanner.open().read_all_tuples()
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import pyarrow as pa

from kudulite.catalog.table_store import TableStore
from kudulite.client.row_reader import RowReader
from kudulite.client.scan import Scan
from kudulite.client.scan_settings import ScanSettings
from kudulite.errors import OptionError, UsageError
from kudulite.model.schema import Column


class Scanner(ScanSettings, RowReader):
    """A scan that is described, opened, and read batch by batch; made by `Table.scanner`."""

    def __init__(self, store: TableStore) -> None:
        RowReader.__init__(self)
        ScanSettings.__init__(self, store)
        self._scan: Scan | None = None

    def set_limit(self, limit: int) -> Self:
        """Read at most that many rows."""
        self._check_may_change()
        if limit <= 0:
            raise OptionError(f"table {self._store.name!r}: limit {limit} of a scan is not above 0")
        return self._with(limit=limit)

    @property
    def timestamp(self) -> int | None:
        """The HybridTime of the snapshot that is read, inclusive; None until `open`."""
        return None if self._scan is None else self._scan.timestamp

    def _check_may_change(self) -> None:
        if self.is_open:
            raise UsageError(
                f"table {self._store.name!r}: the scanner is open; set it up before, or close it"
            )

    def _projected(self) -> Sequence[Column]:
        return ScanSettings._projected(self) if self._scan is None else self._scan.columns

    def _open_batches(self) -> Iterator[pa.RecordBatch]:
        self._scan = Scan(self._store, self._checked())
        return self._scan.to_batches()
