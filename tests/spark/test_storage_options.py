"""Addresses of object stores in Spark: checked options, settings of the session, no secret shown.

Tables are not kept there yet, so each load ends with the error that says so.
"""

from __future__ import annotations

import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

OWN = "spark.kudulite.storage."


def refusal(spark: SparkSession, address: str, **options: str) -> str:
    """The error of a load."""
    with pytest.raises(PySparkException) as found:
        spark.read.format("kudulite").options(**options).load(address)
    return str(found.value)


def test_an_address_and_its_options_are_checked(spark: SparkSession):
    """The options of a load, and those of the session below them."""
    secret = {"aws_access_key_id": "id", "aws_secret_access_key": "VALUE"}
    for address in ("s3://b/t", "s3a://b/t"):
        text = refusal(spark, address, **secret)
        assert "s3://b: kudulite keeps tables in directories" in text and "VALUE" not in text
    assert "unknown option" in refusal(spark, "s3://b/t", aws_regoin="eu")
    assert "is 'maybe', expected 'true' or 'false'" in refusal(
        spark, "s3://b/t", allow_http="maybe"
    )
    text = refusal(spark, "az://c/t", azure_storage_account_key="VALUE")
    assert "write 'secret.azure_storage_account_key'" in text and "VALUE" not in text
    assert "no client for hdfs:" in refusal(spark, "hdfs://host/t")


def test_settings_of_the_session_are_taken(spark: SparkSession):
    """By reads and writes, and for addresses alone."""
    rows = spark.range(1)
    spark.conf.set(f"{OWN}timeout", "soon")
    try:
        assert "'timeout' is 'soon', expected a duration" in refusal(spark, "s3://b/t")
        assert "in directories" in refusal(spark, "s3://b/t", timeout="3s")
        with pytest.raises(PySparkException, match="'timeout' is 'soon', expected a duration"):
            rows.write.format("kudulite").mode("append").save("s3://b/t")
        assert "the folder does not exist" in refusal(spark, "/no/such/table")
    finally:
        spark.conf.unset(f"{OWN}timeout")


def test_a_url_of_a_directory_may_have_no_storage_options(spark: SparkSession, tmp_path):
    """They are an error there, as they would have no effect."""
    text = refusal(spark, f"file://{tmp_path}/t", aws_region="eu")
    assert re.search("is a directory, which has no storage options; leave out 'aws_region'", text)
