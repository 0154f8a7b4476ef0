"""Every public object prints as what it is: in an error, in a notebook, in a debugger."""

import inspect
from pathlib import Path
from typing import Any, is_typeddict

import pytest

import kudulite
from kudulite.backups.backup_job import begin_backup
from kudulite.backups.restore_job import begin_restore
from kudulite.kudu.scanner import Scanner
from kudulite.kudu.tokens import ScanTokenBuilder
from tests.support.tables.core_tables import environment


def described_table() -> tuple[kudulite.Schema, kudulite.Partitioning]:
    """A schema and a partitioning."""
    columns = [
        kudulite.column("k", kudulite.int64),
        kudulite.column("v", kudulite.string, default="x", encoding="plain", compression="zstd"),
    ]
    partitioning = kudulite.Partitioning().add_hash_partitions(["k"], 2)
    partitioning.set_range_partition_columns(["k"]).add_range_partition([0], [100])
    return kudulite.schema(columns, "k"), partitioning


def public_objects(folder: Path) -> list[Any]:
    """One of each public class, and what their methods give."""
    client = kudulite.Client(folder / "root", environment())
    schema, partitioning = described_table()
    table = client.create_table("t", schema, partitioning)
    result = table.insert([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
    session = client.new_session()
    kinds = ("insert", "upsert", "update", "delete")
    names = [f"new_{kind}{suffix}" for kind in kinds for suffix in ("", "_ignore")]
    operations = [getattr(table, name)({"k": 1}) for name in names]
    session.apply(table.new_insert({"k": 1, "v": "again"}))
    with pytest.raises(kudulite.errors.RowError):
        session.flush()
    start, write = table.current_timestamp(), table.new_bulk_write("upsert")
    table.upsert([{"k": 1, "v": "c"}])
    scanner = Scanner(table).add_predicate(table["v"] == "c")
    alterer = client.new_table_alterer(table)
    spec = alterer.add_column("w", kudulite.int8)
    limits = kudulite.NativeLimits(excluded_fraction_max=1, handed_bytes_max=0, decoded_bytes_max=0)
    plan = table.native_plan(where=[table["k"] < 50], limits=limits)
    objects = [client, spec, partitioning, table, table.schema, *table.schema.columns]
    objects += [table["k"], table["k"] + 1, client.sql("SELECT count(*) AS n FROM t")]
    objects += [
        result,
        result.timestamp,
        session,
        *operations,
        table.schema.new_row(),
        *session.get_pending_errors()[0],
    ]
    objects += [
        session.counters,
        *table.versions(),
        kudulite.parse_operation("upsert"),
        table["v"],
        table["v"] == "c",
        kudulite.int64,
        write,
        write.stage([], 0),
    ]
    objects += [table.scan(), table.changes(start), scanner.open(), scanner, scanner.next_batch()]
    objects += [
        *table.scan_tokens(),
        *table.change_tokens(start),
        ScanTokenBuilder(table),
        kudulite.ReadRequest.of(["v"], table["k"] < 50),
        alterer,
    ]
    token_scanner = ScanTokenBuilder(table).build()[0].into_kudu_scanner()
    objects += [token_scanner, scanner.get_projection_schema()]
    objects += [plan, *plan.files, *plan.conditions, *plan.tokens]
    objects += table.native_plan(where="k < 5 OR v = 'c'").conditions
    objects += [column for file in plan.files for column in file.columns]
    objects += [table.metrics, table.plot_layout()]
    objects += [table.check(), table.statistics, (done := table.maintain()), done.garbage, limits]
    return objects + jobs_of(table, folder)


def jobs_of(table: kudulite.Table, folder: Path) -> list[Any]:
    """A backup and a restore, with their parts."""
    objects: list[Any] = []
    with begin_backup(table, folder / "backups") as job:
        objects += [job, *job.pieces]
        job.run()
        objects.append(job.finish())
    with begin_restore(folder / "backups", folder / "root" / "r") as restore:
        objects += [restore, *restore.steps()]
    client = kudulite.connect(folder / "other")
    client.create_table("t", table.schema)
    return [*objects, client.soft_delete_table("t", 60), kudulite.RangePartition(0, 10)]


def test_every_public_object_has_a_readable_repr(tmp_path: Path):
    """No address, and the class or the content is there; no public class is left out."""
    objects = public_objects(tmp_path)
    for value in objects:
        text = repr(value)
        assert " object at 0x" not in text, (type(value), text)
        assert len(text) > 2
    classes = {
        value
        for name in kudulite.__all__
        if inspect.isclass(value := getattr(kudulite, name))
        and not issubclass(value, Exception)
        and not is_typeddict(value)  # its objects are dicts
    }
    made = {kind for value in objects for kind in type(value).__mro__}
    assert {kind.__name__ for kind in classes - made} == set()


def test_what_reprs_say(tmp_path: Path):
    """In the words of the table: types, names and conditions, never only an id."""
    client = kudulite.Client(tmp_path, environment())
    columns = [
        kudulite.column("id", kudulite.int64),
        kudulite.column(
            'a "b"', kudulite.string, default="x", encoding="plain", compression="zstd"
        ),
    ]
    partitioning = kudulite.Partitioning().add_hash_partitions("id", 2)
    partitioning.set_range_partition_columns("id").add_range_partition([0], [9])
    assert repr(partitioning) == "Partitioning(hash (id) in 2 buckets; range (id): [0] to [9])"
    assert repr(kudulite.Partitioning()) == "Partitioning(none)"
    table = client.create_table("t", kudulite.schema(columns, "id"), partitioning)
    key, value = table.schema.columns
    assert repr(key) == 'int64 "id" NOT NULL'
    assert repr(value) == """string "a ""b""\" DEFAULT 'x' ENCODING plain COMPRESSION zstd"""
    assert repr(table.schema) == f"Schema({key!r}, {value!r}, PRIMARY KEY (id))"
    assert repr(table.scan(columns=["id"])) == "<kudulite Scan: id int64>"
    scanner = Scanner(table).set_projected_column_names(["id"]).add_predicate(table["id"] > 1)
    assert repr(scanner) == "<kudulite Scanner of table 't': id where id > 1>"
    assert repr(scanner.open()) == repr(scanner)
    alterer = client.new_table_alterer(table).rename("u")
    assert repr(alterer) == "<kudulite alterer of table 't': 0 steps, renamed to 'u'>"
