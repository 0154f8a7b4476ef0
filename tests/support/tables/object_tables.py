"""Tables on objects in memory, with as many clients as a test wants, which share nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from obstore.store import MemoryStore

from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.storage.object_storage import ObjectStorage
from tests.support.tables.core_tables import environment

ROOT = Path("memory:/bucket")
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])


class ObjectTables:
    """A store in memory; each client of it is like that of another process."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def client(self, **options: Any) -> Client:
        """A client with a storage, caches and chains of its own."""
        storage = ObjectStorage(self.store, ROOT)
        return Client(ROOT / "tables", environment(storage, **options))

    def new_table(self, client: Client | None = None, buckets: int = 2, **options: Any) -> Table:
        """A new table `t`."""
        client = client or self.client()
        partitions = [(["k"], buckets)] if buckets > 1 else None
        return client.create_table(
            "t", SCHEMA, primary_key=["k"], hash_partitions=partitions, **options
        )


def rows(*keys: int, v: int = 0) -> pa.Table:
    """Rows of these keys."""
    return pa.table({"k": keys, "v": [v] * len(keys)}, schema=SCHEMA)
