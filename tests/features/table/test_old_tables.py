"""Small tables of every format version: read, checked, written to and compacted.

The archives in golden/tables were written by the software of their time and never change. They have
base data, REDO, UNDO after a compaction, deletes and, by version, a log, a tag and tombstones. A
new format version needs a new archive, written before the version is raised.

Manifests have format 5 only where older software must refuse the table, because it does not know an
option that the table uses, and format 6 while a moment before an alteration of columns can be read.
"""

import tarfile
from pathlib import Path

import pytest

import kudulite
from kudulite.chain import manifest
from kudulite.chain.manifest import FORMAT_VERSION_WITHOUT_CHANGES, FORMAT_VERSION_WITHOUT_OPTIONS
from kudulite.client.client import Client
from kudulite.errors import FormatVersionError, RowError
from tests.support.tables.core_tables import CoreTables, ManualClock, environment, stored

FOLDER = Path(__file__).parent / "golden" / "tables"
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.iterdir())
NUMBERED = FOLDER.parent / "table-numbered-5.tar.xz"
WITH_OPTIONS = "manifest-5-superblock-3"  # an owner, a comment, hash partitions of a range
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
    return unpacked(core, FOLDER / f"{name}.tar.xz")


def unpacked(core: CoreTables, path: Path) -> kudulite.Table:
    """The table of an archive."""
    with tarfile.open(path) as archive:
        archive.extractall(core.root / "db" / "t", filter="data")
    return client_of(core.root / "db").table("t")


def client_of(root: Path) -> Client:
    """A client that has seen nothing, of a time when the retention of the tables had not passed."""
    return Client(root, environment(clock=ManualClock(1_795_600_000_000_000)))


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
    session = client_of(table.path.parent).new_session()
    session.apply(table.new_delete({"k": 2}))
    session.flush()
    expected = tuples_of(rows | {1: (5, "new"), 150: (5, "new")})
    expected = [row for row in expected if row[0] != 2]
    for act in (table.flush, table.compact, lambda: table.maintain(0, 0)):
        act()
        again = client_of(table.path.parent).table("t")
        assert stored(again) == expected
        assert stored(again, before) == tuples_of(rows)
        again.check().raise_if_bad()
    newest = max((table.path / "manifest").glob("*.json"))
    with_options = FORMAT_VERSION_WITHOUT_CHANGES
    version = with_options if name == WITH_OPTIONS else FORMAT_VERSION_WITHOUT_OPTIONS
    assert f'"format_version":{version}' in newest.read_text()


def test_options_of_an_older_table_are_kept(core: CoreTables):
    """Also by what is written to it now."""
    table = unpacked(core, FOLDER / f"{WITH_OPTIONS}.tar.xz")
    table.upsert([{"k": 1, "v": 5, "s": "new"}])
    table = client_of(table.path.parent).table("t")
    assert (table.owner, table.comment) == ("ann", "rows of then")
    assert table.partition_schema.describe_all() == [
        "hash(k) × 2",
        "k: [-∞, 100)",
        "k: [100, 200) hash(k) × 3",
    ]


def test_an_older_table_with_numbered_rows_and_an_immutable_column_goes_on(core: CoreTables):
    """No id is given again, also none whose row was deleted; some ids are in the log only."""
    table, names = unpacked(core, NUMBERED), ["k", "auto_incrementing_id", "born"]
    rows = table.scan(names, ordered=True).to_arrow().to_pylist()
    found = [tuple(row.values()) for row in rows]
    first = [(0, 1, 0), (0, 3, 3), (0, 5, 6), (0, 9, 100), (1, 2, 1), (1, 4, 4), (1, 6, 7)]
    assert found == [*first, (1, 10, 100), (2, 1, 2), (2, 2, 5), (2, 3, 8), (2, 5, 100)]
    with pytest.raises(RowError, match="immutable"):
        table.update([{**rows[0], "born": 5}])
    table.insert([{"k": 0, "born": 1}, {"k": 2, "born": 1}])
    new = table.scan(names, where="born = 1", ordered=True).to_arrow().to_pylist()
    assert [(row["k"], row["auto_incrementing_id"]) for row in new] == [(0, 11), (1, 2), (2, 6)]
    table.check().raise_if_bad()


@pytest.mark.parametrize("path", [NUMBERED, FOLDER / f"{WITH_OPTIONS}.tar.xz"])
def test_software_that_does_not_know_a_table_refuses_it(core: CoreTables, monkeypatch, path: Path):
    """It names the file, both versions, and the way out, before it reads anything else."""
    monkeypatch.setattr(manifest, "FORMAT_VERSION", FORMAT_VERSION_WITHOUT_OPTIONS)
    text = r"json: table of format version 5, known: 1 to 4; upgrade kudulite to open it"
    table = unpacked(core, path)
    with pytest.raises(FormatVersionError, match=text):
        table.scan()
    monkeypatch.undo()
