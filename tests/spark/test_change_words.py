"""One history of changes, read in every way: the same names, types and values in all of them."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, TimestampType

import kudulite
from tests.spark.conftest import BOTH, FRONT
from tests.spark.test_catalog import warehouse
from tests.support.command_line import output
from tests.support.spark.spark_tables import configured, load

__all__ = ["warehouse"]

pytestmark = BOTH
NAMES = ["id", "v", "_change_type", "_commit_version", "_commit_timestamp"]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
Change = tuple[Any, ...]


def made(folder: Path) -> tuple[kudulite.Table, int, dict[str, list[Change]]]:
    """A table, a moment, and the changes after it by their images, from a dictionary."""
    client = kudulite.connect(folder, background_maintenance=False)
    table = client.create_table("t", SCHEMA, primary_key="id", hash_partitions=[(["id"], 2)])
    rows = {key: f"v{key}" for key in range(6)}
    start = table.insert(pa.table({"id": list(rows), "v": list(rows.values())})).timestamp
    found: dict[str, list[Change]] = {"after": [], "both": []}

    def changed(kind: str, key: int, value: str | None, moment: int) -> None:
        wall = kudulite.Timestamp(moment).to_datetime()
        change = (key, value, kind, int(moment), wall)
        found["both"].append(change)
        if kind != "update_preimage":
            found["after"].append(change)

    for key, value in ((1, "new"), (2, None), (3, "v3")):
        moment = table.update([{"id": key, "v": value}]).timestamp
        changed("update_preimage", key, rows[key], moment)
        changed("update_postimage", key, value, moment)
    changed("delete", 4, rows[4], table.delete([{"id": 4}]).timestamp)
    changed("insert", 9, "x", table.insert([{"id": 9, "v": "x"}]).timestamp)
    table.insert([{"id": 10, "v": "gone"}])
    table.delete([{"id": 10}])
    return table, int(start), {name: in_order(changes) for name, changes in found.items()}


def in_order(changes: list[Change]) -> list[Change]:
    """Changes by key, the preimage of an update first."""
    return sorted(changes, key=lambda change: (change[0], change[2] != "update_preimage"))


def of_arrow(table: pa.Table) -> list[Change]:
    """Names, types and values of Arrow."""
    assert table.schema.names == NAMES
    assert table.schema.types[2:] == [pa.string(), pa.uint64(), pa.timestamp("us", "UTC")]
    return in_order([tuple(row.values()) for row in table.to_pylist()])


def of_frame(frame: DataFrame) -> list[Change]:
    """Names, types and values of Spark, whose times are without a zone in Python."""
    assert frame.schema.names == NAMES
    types = [field.dataType for field in frame.schema][2:]
    assert types == [StringType(), LongType(), TimestampType()]
    micros = "unix_micros(_commit_timestamp)"
    return in_order(
        [(*row[:4], moment_of(row[4])) for row in frame.selectExpr(*NAMES[:4], micros).collect()]
    )


def moment_of(microseconds: int) -> datetime.datetime:
    """A time of its microseconds since 1970."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(microseconds=microseconds)


def of_lines(text: str) -> list[Change]:
    """Names and values of the command line."""
    rows = [json.loads(line) for line in text.splitlines()]
    assert all(list(row) == NAMES for row in rows)
    moment = datetime.datetime.fromisoformat
    return in_order([(*list(row.values())[:4], moment(row[NAMES[4]])) for row in rows])


@FRONT
@pytest.mark.quick
def test_changes_are_the_same_in_every_way(spark, warehouse, tmp_path):
    """Python, tokens, command line, DataFrame, SQL and stream; of one image and of both."""
    table, start, expected = made(tmp_path / "warehouse")
    for images, changes in expected.items():
        assert of_arrow(table.changes(start, images=images).to_arrow()) == changes
        tokens = table.change_tokens(start, images=images, split_size_bytes=1)
        batches = [batch for token in tokens for batch in token.open()]
        assert of_arrow(pa.Table.from_batches(batches)) == changes
        printed = output("changes", table.path, start, "--images", images, "--json")
        assert of_lines(printed) == changes
        options = {"startTimestamp": start, "changeImages": images}
        stream = spark.readStream.format("kudulite").options(**options).load(str(table.path))
        writer = stream.writeStream.format("memory").queryName(f"words_{images}")
        writer.trigger(availableNow=True).start().awaitTermination()
        window = f"startTimestamp = '{start}', changeImages = '{images}'"
        for zone in ("UTC", "America/Chicago"):
            with configured(spark, {"spark.sql.session.timeZone": zone}):
                assert of_frame(load(spark, table.path, **options)) == changes
                assert of_frame(spark.table(f"words_{images}")) == changes
                found = spark.sql(f"SELECT * FROM {warehouse}.t.changes WITH ({window})")
                assert of_frame(found) == changes
    assert of_arrow(table.changes(start).to_arrow()) == expected["after"]
    assert of_frame(load(spark, table.path, startTimestamp=start)) == expected["after"]
    if spark.version >= "4.2":
        clause = f"CHANGES FROM VERSION '{start}' EXCLUSIVE"
        found = spark.sql(f"SELECT {', '.join(NAMES)} FROM {warehouse}.t {clause}")
        assert of_frame(found) == expected["both"]
