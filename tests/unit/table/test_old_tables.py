"""Small tables of every format version: read, checked, written to and compacted.

The archives in golden/tables were written by the software of their time and never change. They have
base data, REDO, UNDO after a compaction, deletes and, by version, a log, a tag and tombstones. A
new format version needs a new archive, written before the version is raised.
"""

import tarfile
from pathlib import Path

import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.table.manifest import FORMAT_VERSION_WITHOUT_OPTIONS
from tests.support.tables.core_tables import CoreTables, environment, stored

FOLDER = Path(__file__).parent / "golden" / "tables"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.iterdir())
WITHOUT_LOG = "manifest-1-superblock-1"
WITHOUT_TAGS = (WITHOUT_LOG, "manifest-1-superblock-2")


def rows_of(name: str, *, is_tag: bool = False) -> dict[int, tuple[int, str]]:
    """The rows of a table by key, now or at its tag."""
    rows = {k: (1, f"row {k}") for k in (*range(20), *range(100, 110))}
    rows |= {k: (2, f"row {k}") for k in (1, 2, 101)}
    del rows[3], rows[103]
    rows |= {k: (3, f"row {k}") for k in (4, 20)}
    if not is_tag and name != WITHOUT_LOG:
        rows |= dict.fromkeys((5, 21), (4, "session"))
        del rows[6]
    return rows


def tuples_of(rows: dict[int, tuple[int, str]]) -> list[tuple]:
    """Rows as a scan returns them."""
    return sorted((key, *cells) for key, cells in rows.items())


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    """A table's formats."""
    return request.param


@pytest.fixture
def table(core: CoreTables, name: str) -> kudulite.Table:
    """The table, by a client that has seen nothing."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(core.root / "db" / "t", filter="data")
    return Client(core.root / "db", environment()).table("t")


def test_a_table_of_an_older_format_is_read(name: str, table: kudulite.Table):
    """Its rows now and at its tag, and the history of a row."""
    assert stored(table) == tuples_of(rows_of(name))
    table.check().raise_if_bad()
    if name not in WITHOUT_TAGS:
        assert stored(table, table.tags["monday"]) == tuples_of(rows_of(name, is_tag=True))
    assert table.history(1).column("v").to_pylist() == [1, 2]
    assert table.history(3).column("_change_type").to_pylist()[-1] == "delete"


@pytest.mark.full
def test_a_table_of_an_older_format_is_written_and_compacted(name: str, table: kudulite.Table):
    """By batches and sessions; it has the newest format then, and keeps its past."""
    rows, before = rows_of(name), table.current_timestamp()
    table.upsert([{"k": 1, "v": 5, "s": "new"}, {"k": 150, "v": 5, "s": "new"}])
    session = Client(table.path.parent, environment()).new_session()
    session.apply(table.new_delete({"k": 2}))
    session.flush()
    expected = tuples_of(rows | {1: (5, "new"), 150: (5, "new")})
    expected = [row for row in expected if row[0] != 2]
    for act in (table.flush, table.compact, lambda: table.maintain(0, 0)):
        act()
        again = Client(table.path.parent, environment()).table("t")
        assert stored(again) == expected
        assert stored(again, before) == tuples_of(rows)
        again.check().raise_if_bad()
    newest = max((table.path / "manifest").glob("*.json"))
    assert f'"format_version":{FORMAT_VERSION_WITHOUT_OPTIONS}' in newest.read_text()
