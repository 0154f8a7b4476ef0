"""TablePurge: erasing rows for good, with all that the table remembers of them."""

from __future__ import annotations

from typing import Any

from kudulite.catalog.purge import PurgeReport, purge_keys
from kudulite.catalog.table_store import TableStore
from kudulite.client.lookup import KeyLookup


class TablePurge:
    """The part of `Table` that forgets."""

    _store: TableStore

    def purge(self, keys: Any) -> PurgeReport:
        """Erase the rows of `keys` (as `get_many` takes them), live or not, with all their past.

        Afterwards no file of the table holds them: base data, deltas, the log, and older versions
        are written again without them, or removed at once. Other rows keep their past. Readers of
        an older version may get a StorageError and have to scan again. Where writes are staged and
        not committed, the report names them: they keep older files, so purge again when they have
        ended. Backups and copies of the folder are not touched.

        Raises SchemaError, LockTimeoutError, StorageError, CorruptionError, ConflictError.
        """
        return purge_keys(self._store, KeyLookup(self._store).keys_by_tablet(keys))
