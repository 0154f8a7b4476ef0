"""kudu-spark's option names: taken where they mean something, else checked, or refused."""

import logging

import pytest

from kudulite.errors import OptionError
from kudulite_spark.kudu_options import KUDU_NAMES, kudu_names_replaced
from kudulite_spark.options import ReadOptions, WriteOptions

PLACE = {"kudu.master": "/data/warehouse", "kudu.table": "metrics"}


@pytest.mark.parametrize(
    ("master", "table", "path"),
    [
        ("/data/warehouse", "metrics", "/data/warehouse/metrics"),
        ("/data/warehouse/", "impala::db.metrics", "/data/warehouse/impala::db.metrics"),
        (" warehouse ", "impala::db.metrics", "warehouse/impala::db.metrics"),
        ("file:/data/x%20y", "a%20b#?", "/data/x y/a%20b#?"),
    ],
)
def test_master_and_table_are_the_directory_and_the_name(master: str, table: str, path: str):
    """The names that Impala gives its tables are names, too."""
    options = {"kudu.master": master, "KUDU.TABLE": table}
    assert ReadOptions.parse(options).path == WriteOptions.parse(options).path == path


def test_each_option_of_a_read_and_of_a_write_has_its_place():
    """Milliseconds become the microseconds that a snapshot takes."""
    reads = {
        "kudu.snapshotTimestampMs": "1700000000123",
        "kudu.splitSizeBytes": "1048576",
        "kudu.faultTolerantScan": "true",
    }
    read = ReadOptions.parse({**PLACE, **reads})
    assert read == ReadOptions(
        "/data/warehouse/metrics", None, None, "1700000000123000", False, 1 << 20, True
    )
    writes = {
        "kudu.operation": "insert-ignore",
        "kudu.ignoreNull": "true",
        "kudu.repartition": "true",
        "kudu.handleSchemaDrift": "true",
    }
    assert WriteOptions.parse({**PLACE, **writes}) == WriteOptions(
        "/data/warehouse/metrics",
        "insert_ignore",
        ignore_null=True,
        repartition=True,
        schema_evolution=True,
    )


@pytest.mark.parametrize(
    ("options", "operation"),
    [
        ({"kudu.operation": "insert"}, "insert_ignore"),
        ({"operation": "INSERT"}, "insert_ignore"),
        ({"kudu.operation": "update"}, "update"),
        ({}, "upsert"),
    ],
)
def test_ignored_duplicates_are_those_of_inserts(options: dict, operation: str):
    """As in kudu-spark, other operations have none."""
    options = {**PLACE, **options, "kudu.ignoreDuplicateRowErrors": "true"}
    assert WriteOptions.parse(options).operation == operation


def test_what_has_no_effect_is_logged(caplog):
    """How a client talks to servers, and an order that rows have anyway."""
    options = {
        "path": "/t",
        "kudu.batchSize": "1000",
        "kudu.keepAlivePeriodMs": "15000",
        "kudu.scanLocality": "CLOSEST_REPLICA",
        "kudu.repartition.sort": "false",
        "kudu.requireAuthentication": "false",
        "kudu.encryptionPolicy": "optional",
        "kudu.saslProtocolName": "kudu",
        "kudu.scanRequestTimeoutMs": "30000",
        "kudu.socketReadTimeoutMs": "0",
    }
    with caplog.at_level(logging.INFO, "kudulite.spark"):
        assert ReadOptions.parse(options) == ReadOptions("/t")
    assert all(name in caplog.text for name in options if name != "path")
    assert len(KUDU_NAMES) == 19


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kudu.master": "/data"}, "'kudu.table' is missing"),
        ({"kudu.table": "t"}, "'kudu.master' is missing"),
        (
            {"kudu.master": "host:7051", "kudu.table": "t"},
            "found addresses of servers: 'host:7051'",
        ),
        ({"kudu.master": "a:7051,b:7051", "kudu.table": "t"}, "addresses of servers"),
        ({"kudu.master": "a.org,b.org", "kudu.table": "t"}, "addresses of servers"),
        ({"kudu.master": "/data", "kudu.table": "a/b"}, "table name 'a/b'"),
        ({"kudu.master": "/data", "kudu.table": ".."}, "table name '..'"),
        ({**PLACE, "paths": '["/t"]'}, "option 'paths' is given"),
        ({**PLACE, "path": "/t"}, "option 'path' is given, and kudu-spark's name for the same"),
        (
            {**PLACE, "kudu.operation": "insert", "operation": "insert"},
            "option 'operation' is given",
        ),
        ({**PLACE, "kudu.batchsize": "many"}, "'kudu.batchSize' is a whole number, found 'many'"),
        ({**PLACE, "kudu.snapshotTimestampMs": "now"}, "'kudu.snapshotTimestampMs' is a whole"),
        ({**PLACE, "kudu.scanLocality": "near"}, "one of leader_only, closest_replica"),
        ({**PLACE, "kudu.repartition.sort": "1"}, "'kudu.repartition.sort' is true or false"),
        ({**PLACE, "kudu.requireAuthentication": "true"}, "access to the directory can read"),
        ({**PLACE, "kudu.encryptionPolicy": "REQUIRED"}, "use an encrypted file system"),
        ({**PLACE, "kudu.masters": "x"}, "unknown option 'kudu.masters'; .*kudu.batchSize, "),
        ({**PLACE, "kudu.operation": "replace"}, "unknown operation 'replace'; known: insert"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(options: dict, words: str):
    """With the reason, and what to do instead."""
    with pytest.raises(OptionError, match=words):
        WriteOptions.parse(options)


def test_options_without_kudu_names_stay_as_they_are():
    """Also internal ones, which are not for users."""
    options = {"path": "/t", "kuduliteFront": "1", "columns": "a"}
    assert kudu_names_replaced(options) == options
