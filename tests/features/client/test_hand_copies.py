"""Tables whose files were copied by hand between a directory and a store: an error names them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kudulite.client.client import Client
from kudulite.errors import TableNotFoundError
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import Storage
from tests.support.doubles.base_storage import ObjectFiles
from tests.support.tables.core_tables import environment

ROWS = pa.table({"k": [1, 2], "v": [3, 4]})


@pytest.mark.parametrize(
    ("made", "read", "origin"),
    [(LocalStorage, ObjectFiles, "a directory"), (ObjectFiles, LocalStorage, "an object store")],
)
def test_a_copy_of_files_is_named_as_such(
    tmp_path: Path, made: type[Storage], read: type[Storage], origin: str
):
    """The error says how to copy tables. In an empty directory a table is only reported missing."""
    root = tmp_path / "tables"
    table = Client(root, environment(made())).create_table("t", ROWS.schema, primary_key="k")
    table.insert(ROWS)
    client = Client(root, environment(read()))
    assert client.list_tables() == []
    with pytest.raises(TableNotFoundError, match=f"copied from {origin}.*with Table.copy_to"):
        client.table("t")
    with pytest.raises(TableNotFoundError) as found:
        Client(tmp_path / "none", environment(read())).table("t")
    assert "copied" not in str(found.value)
    assert table.scan().count() == 2
