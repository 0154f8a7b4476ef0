"""Addresses of object stores in Spark: options of a load, settings of the session, no secret."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from tests.support.object_server import WRITER, ObjectServer

OWN, S3A = "spark.kudulite.storage.", "spark.hadoop.fs.s3a."
KEY, SECRET = WRITER


def options_of(server: ObjectServer) -> dict[str, str]:
    """As a user types them."""
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "max_retries": "1",
    }


@contextmanager
def settings(spark: SparkSession, **given: str) -> Iterator[None]:
    """Settings of the session for a while."""
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in given:
            spark.conf.unset(name)


@pytest.fixture
def address(object_server: ObjectServer) -> str:
    """The address of a table of one row."""
    root = f"s3://{object_server.bucket}/spark {uuid.uuid4().hex}"
    client = kudulite.connect(root, storage_options=options_of(object_server))
    client.create_table("t", {"id": [1]}, primary_key="id").insert([{"id": 1}])
    return f"{root}/t"


def write_and_read(spark: SparkSession, address: str, **options: str) -> list[int]:
    """Write two rows, and return the ids that are read back."""
    rows = spark.range(2, 4).coalesce(1)
    rows.write.format("kudulite").options(**options).mode("append").save(address)
    read = spark.read.format("kudulite").options(**options).load(address)
    assert SECRET not in read._jdf.queryExecution().toString()
    return sorted(row.id for row in read.where("id > 0").collect())


def test_a_table_on_a_store_is_written_and_read(
    spark: SparkSession, address: str, object_server: ObjectServer
):
    """By options of its own, in tasks too."""
    assert write_and_read(spark, address, **options_of(object_server)) == [1, 2, 3]
    s3a = address.replace("s3://", "s3a://")
    assert write_and_read(spark, s3a, **options_of(object_server)) == [1, 2, 3]


def test_settings_of_the_session_are_taken(
    spark: SparkSession, address: str, object_server: ObjectServer
):
    """Where an option is not given; a directory has no use for them."""
    with settings(spark, **{OWN + n: v for n, v in options_of(object_server).items()}):
        assert write_and_read(spark, address) == [1, 2, 3]
        with pytest.raises(PySparkException, match="the folder does not exist"):
            spark.read.format("kudulite").load("/no/such/table")
        with pytest.raises(PySparkException, match="'timeout' is 'soon', expected a duration"):
            spark.read.format("kudulite").option("timeout", "soon").load(address)
    with settings(spark, **{f"{OWN}timeout": "soon"}):
        with pytest.raises(PySparkException, match="'timeout' is 'soon', expected a duration"):
            spark.range(1).write.format("kudulite").mode("append").save(address)


def test_settings_of_hadoop_are_taken(
    spark: SparkSession, address: str, object_server: ObjectServer
):
    """Those of s3a, with its words."""
    given = {
        "endpoint": object_server.endpoint.removeprefix("http://"),
        "connection.ssl.enabled": "false",
        "endpoint.region": "us-east-1",
        "access.key": KEY,
        "secret.key": SECRET,
        "path.style.access": "true",
    }
    with settings(spark, **{S3A + name: value for name, value in given.items()}):
        assert write_and_read(spark, address) == [1, 2, 3]


def refusal(spark: SparkSession, address: str, **options: str) -> str:
    """The error of a load."""
    with pytest.raises(PySparkException) as found:
        spark.read.format("kudulite").options(**options).load(address)
    assert SECRET not in str(found.value)
    return str(found.value)


def test_options_are_checked(spark: SparkSession, tmp_path):
    """Before the store is asked; no value is in an error."""
    assert "unknown option" in refusal(spark, "s3://b/t", aws_regoin=SECRET)
    assert "is 'maybe', expected 'true'" in refusal(spark, "s3://b/t", allow_http="maybe")
    text = refusal(spark, "az://c/t", azure_storage_account_key=SECRET)
    assert "write 'secret.azure_storage_account_key'" in text
    assert "no client for hdfs:" in refusal(spark, "hdfs://host/t")
    text = refusal(spark, f"file://{tmp_path}/t", aws_region=SECRET)
    assert "is a directory, which has no storage options; leave out 'aws_region'" in text


def test_functions_of_the_driver_take_the_settings_of_the_session(
    spark: SparkSession, object_server: ObjectServer, tmp_path
):
    """All of a table: make it, write, read natively, merge, maintain, list, back up."""
    root = f"s3://{object_server.bucket}/driver {uuid.uuid4().hex}"
    place = f"{root}/t"
    with settings(spark, **{OWN + n: v for n, v in options_of(object_server).items()}):
        kudulite_spark.create_table(spark, place, "id BIGINT, v BIGINT", "id", [(["id"], 2)])
        rows = spark.range(10).selectExpr("id", "id * 2 AS v")
        routed = kudulite_spark.repartition_for(rows, place)
        routed.write.format("kudulite").mode("append").save(place)
        changed = spark.range(5, 12).selectExpr("id", "-id AS v")
        merge = kudulite_spark.merge(changed, place)
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        read = kudulite_spark.read_table(spark, place, where="v < 0", columns=["id"])
        assert sorted(row.id for row in read.collect()) == list(range(5, 12))
        assert kudulite_spark.read_table(spark, place).count() == 12
        assert not kudulite_spark.maintain(spark, place).busy_tablet_ids
        assert kudulite_spark.versions(spark, place).count() >= 3
        for target in (tmp_path / "backups", f"{root}/backups/t"):
            assert kudulite_spark.backup(spark, place, target).row_count == 12
            kudulite_spark.merge(changed, place).when_matched_update_all().execute()
            assert kudulite_spark.backup(spark, place, target, content_hash=True).row_count == 12
            for again in (f"{root}/again", tmp_path / "again"):
                restored = kudulite_spark.restore(spark, target, again, overwrite=True)
                assert restored.scan(ordered=True).to_arrow() == (
                    kudulite.open_table(place, storage_options=options_of(object_server))
                    .scan(ordered=True)
                    .to_arrow()
                )
        stream = spark.readStream.format("kudulite").load(place).writeStream.format("memory")
        name = f"s{uuid.uuid4().hex}"
        stream.queryName(name).trigger(availableNow=True).start().awaitTermination()
        assert spark.table(name).count() >= 12
        context = kudulite_spark.KuduContext(spark, root)
        context.deleteRows(spark.range(3), "t")
        assert context.kuduRDD("t").count() == 9
        assert context.tableExists("t") and not context.tableExists("u")
