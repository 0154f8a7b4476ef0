"""A bucket in which another tool has put marks of folders, as consoles of stores and Hadoop do.

A mark is an empty object whose name ends with a slash. The library lists it without the slash.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from kudulite.client.client import Client
from kudulite.storage import object_lister
from kudulite.storage.object_storage import ObjectStorage
from kudulite.upkeep.garbage_collection import collect_garbage
from tests.support.tables.core_tables import environment

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.int64())])


class MarkedLibrary:
    """The functions of obstore; whatever is listed has the marks of all folders."""

    def __init__(self) -> None:
        self.mark_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(obstore, name)

    def list(self, store: Any, prefix: str | None = None, **_options: Any) -> Iterator[Any]:
        """List all objects below a prefix, and the marks."""
        found = [each for chunk in obstore.list(store, prefix=prefix) for each in chunk]
        folders = {prefix} - {None}
        for each in found:
            parts = each["path"].split("/")[:-1]
            folders |= {"/".join(parts[:count]) for count in range(1, len(parts) + 1)}
        begin = prefix or ""
        found += self._marks(name for name in folders if name and name.startswith(begin))
        yield sorted(found, key=lambda each: each["path"])

    def list_with_delimiter(self, store: Any, prefix: str | None = None) -> Any:
        """List what is in a folder, and its mark."""
        found = obstore.list_with_delimiter(store, prefix=prefix)
        marks = self._marks([prefix] if prefix else [])
        return {**found, "objects": [*marks, *found["objects"]]}

    def _marks(self, names: Any) -> list[Any]:
        now = datetime.now(UTC)
        marks = [{"path": name, "size": 0, "last_modified": now} for name in names]
        self.mark_count += len(marks)
        return marks


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> MarkedLibrary:
    """Marks everywhere, from the first call on."""
    double = MarkedLibrary()
    monkeypatch.setattr(object_lister, "obstore", double)
    return double


def rows(*keys: int, v: int = 0) -> pa.Table:
    """Rows of keys."""
    return pa.table({"k": keys, "v": [v] * len(keys)}, schema=SCHEMA)


def test_a_table_among_marks_keeps_its_rows(library: MarkedLibrary):
    """Through maintenance, a collection of all garbage, a new name, a deletion and its undoing."""
    store = MemoryStore()

    def client() -> Client:
        storage = ObjectStorage(store, Path("memory:/bucket"))
        return Client(Path("memory:/bucket/d"), environment(storage, small_write_rows_max=10))

    assert client().list_tables() == []
    table = client().create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 3)])
    table.insert(rows(*range(100)))
    for key in range(5):
        table.upsert(rows(key, v=1))
    table.delete(rows(*range(50, 100)).select(["k"]))
    table.maintain()
    table.upsert(rows(*range(40, 60), v=2))
    table.compact()
    table.purge(rows(7).select(["k"]))
    collect_garbage(table._store, 0, 0)
    expected = {k: 1 if k < 5 else 2 if k >= 40 else 0 for k in range(60) if k != 7}
    moved = client().rename_table("t", "u")
    assert client().list_tables() == [moved.name]
    opened = client().table(moved.name)
    assert dict(map(tuple, opened.scan().to_arrow().to_pandas().to_numpy().tolist())) == expected
    assert opened.check().problems == ()
    client().soft_delete_table(moved.name, 3600)
    client().recall_table(client().list_soft_deleted_tables()[0].id)
    assert len(client().table(moved.name)) == len(expected)
    client().delete_table(moved.name)
    assert client().list_tables() == [] and library.mark_count > 50


def test_a_mark_does_not_take_the_name_of_a_table(library: MarkedLibrary):
    """A folder that somebody has made for the table in the console of the store."""
    storage = ObjectStorage(MemoryStore(), Path("memory:/bucket"))
    place = Path("memory:/bucket/d/t")
    assert not storage.is_folder(place) and storage.entries(place) == []
    assert storage.names_below(place) == {} and list(storage.files_below(place)) == []
    storage.put(place / "a", b"")
    assert storage.is_folder(place) and storage.entries(place) == [place / "a"]
    assert storage.names_below(place.parent) == {place.parent: [], place: ["a"]}
