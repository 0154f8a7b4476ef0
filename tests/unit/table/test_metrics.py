"""Metrics: what a process has done with a table, and figures as OpenMetrics text."""

import logging

import pytest

import kudulite
from kudulite.client import bulk_write
from kudulite.shown.openmetrics import Family, openmetrics
from kudulite.table.metrics import TableMetrics
from tests.support.tables.core_tables import CoreTables


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """An empty table of one tablet."""
    columns = [kudulite.column("k", kudulite.int64), kudulite.column("v", kudulite.int64)]
    return core.client().create_table("t", kudulite.schema(columns, "k"))


def rows(count: int, value: int = 0) -> list[dict[str, int]]:
    """Rows with the keys from 0 on."""
    return [{"k": k, "v": value} for k in range(count)]


def test_writes_flushes_compactions_and_reads_are_counted(table):
    """Rows by outcome; times only rise."""
    for value in range(4):
        table.upsert(rows(5, value))
    table.insert_ignore(rows(6))
    table.delete(where="k = 5")
    found = table.metrics
    assert (found.bulk_writes, found.rows_inserted, found.rows_updated) == (6, 6, 15)
    assert (found.rows_deleted, found.rows_ignored) == (1, 5)
    assert found.bulk_write_seconds > 0 and found.log_writes == 0
    before = found.scans
    assert table.scan().to_arrow().num_rows == 5
    assert table.get(1) == {"k": 1, "v": 3}
    table.compact()
    table.maintain(0, 0)
    found = table.metrics
    assert (found.scans - before, found.gets) == (1, 1) and found.rows_scanned >= 5
    assert found.compactions > 0 and found.compaction_bytes_written > 0
    assert found.garbage_files_removed > 0
    assert found.block_cache.hit_count > 0


def test_row_writes_are_counted_with_their_log(table):
    """One record for each flush of the session; a memory flush moves them to a rowset."""
    session = kudulite.Session("manual")
    for row in rows(3):
        session.apply(table.new_insert(row))
    session.flush()
    session.apply(table.new_delete({"k": 1}))
    session.flush()
    assert table.flush() == 1
    found = table.metrics
    assert (found.log_writes, found.rows_inserted, found.rows_deleted) == (2, 3, 1)
    assert found.log_bytes > 0 and found.log_write_seconds > 0
    assert (found.flushes, found.bulk_writes) == (1, 0)


def test_metrics_go_with_their_table(table, core):
    """A table that gets the name of another one begins at 0, and none are kept for those gone."""
    client = core.client("other")
    for count in (1, 2):
        made = client.create_table("t", table.schema)
        made.upsert(rows(count))
        assert made.metrics.rows_inserted == count
        if count == 1:
            client.delete_table("t")
        else:
            client.rename_table("t", "u")
    assert client.create_table("t", table.schema).metrics.rows_inserted == 0
    for name in ("t", "u"):
        client.delete_table(name)
    assert client._environment.metrics == {}


def test_metrics_are_of_the_table_in_this_process(table, core):
    """All objects of the table share them, and another table has its own."""
    table.upsert(rows(2))
    client = kudulite.connect(core.root / "root")
    other = client.create_table("u", table.schema)
    assert other.metrics.rows_inserted == 0
    again = client.table("u")
    again.upsert(rows(2))
    assert other.metrics.rows_inserted == 2
    kept = other.metrics
    again.upsert(rows(3))
    assert (kept.rows_inserted, other.metrics.rows_inserted) == (2, 3)
    client.close()


def test_the_text_is_openmetrics():
    """Types, units, meanings, labels with escapes, and the end."""
    samples = [({"table": 'a"\\\n'}, 2), ({}, 0.5)]
    text = openmetrics([Family("log_bytes", "counter", "about it", samples)])
    assert text.splitlines() == [
        "# TYPE kudulite_log_bytes counter",
        "# UNIT kudulite_log_bytes bytes",
        "# HELP kudulite_log_bytes about it",
        'kudulite_log_bytes_total{table="a\\"\\\\\\n"} 2',
        "kudulite_log_bytes_total 0.5",
        "# EOF",
    ]


def test_every_counter_is_in_the_text(table):
    """With the table as its label; HTML and text show the same figures."""
    table.upsert(rows(2))
    found = table.metrics
    text = found.to_openmetrics()
    assert 'kudulite_rows_inserted_total{table="t"} 2\n' in text
    assert "# TYPE kudulite_block_cache_bytes gauge" in text and text.endswith("# EOF\n")
    names = [name for name in vars(TableMetrics()) if name not in ("table", "block_cache")]
    assert all(f"# TYPE kudulite_{name} counter\n" in text for name in names)
    assert "rows_inserted: 2" in str(found)
    assert "<th>rows_inserted</th>" in found._repr_html_()


def test_a_slow_commit_is_one_line_in_the_log(table, monkeypatch, caplog):
    """With the table, the operation and its time; others are not mentioned."""
    with caplog.at_level(logging.WARNING, "kudulite"):
        table.upsert(rows(1))
        assert caplog.messages == []
        monkeypatch.setattr(bulk_write, "SLOW_COMMIT_SECONDS", 0.0)
        table.upsert(rows(2))
    (line,) = caplog.messages
    assert line.startswith("table 't': commit of write ") and "(upsert) took 0." in line


def test_an_operation_of_upkeep_is_a_line_with_its_figures(table, caplog):
    """Flush, maintenance and garbage collection; the record has them as fields for programs."""
    for value in range(4):
        table.upsert(rows(500, value))
        table.flush()
    with caplog.at_level(logging.INFO, "kudulite"):
        with kudulite.Session("manual") as session:
            session.apply(table.new_upsert({"k": 1, "v": 9}))
        table.maintain(0, 0)
        table.maintain(0, 0)  # has nothing left to do
    (tablet,) = table._store.newest().tablets
    found = [vars(record) for record in caplog.records]
    assert all((each["table"], each["tablet"]) == ("t", tablet.id) for each in found)
    operations = [each["operation"] for each in found]
    assert operations[0] == "memory flush" and operations[-1] == "garbage collection"
    assert len(operations) > 2
    assert all(each["bytes"] > 0 and each["seconds"] > 0 for each in found)
    assert found[0]["message"].startswith(f"table 't', tablet {tablet.id}: memory flush took 0.")
    assert found[-1]["bytes"] == table.metrics.garbage_bytes_removed
