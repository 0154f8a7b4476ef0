"""register(spark): a session whose workers know neither this checkout nor this interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kudulite_spark
from kudulite.errors import NotSupportedError
from kudulite_spark import session

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
from pyspark.sql import SparkSession
from kudulite_spark import ensure_java, register

ensure_java()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
register(spark)
frame = spark.range(10).selectExpr("id AS k", "id * 2 AS v")
frame.write.format("kudulite").mode("append").option("primaryKey", "k").save("relative")
print(spark.read.format("kudulite").load(sys.argv[1]).agg({"v": "sum"}).first()[0])
"""


def test_register_brings_the_package_and_the_interpreter_to_the_workers(tmp_path):
    """Otherwise workers run the `python3` of the PATH, which lacks the package."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    }
    environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "relative"), str(ROOT)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.stdout.split() == ["90"], run.stderr[-3000:]


def test_a_catalog_needs_a_spark_with_the_jvm_extension(spark, tmp_path, monkeypatch):
    """Where the jar does not fit, the message says which versions it fits, and what works."""
    monkeypatch.setattr(session, "EXTENSION_VERSIONS", ("5.1", "5.2"))
    with pytest.raises(NotSupportedError) as refused:
        kudulite_spark.register(spark, warehouse=tmp_path, catalog="refused")
    assert f"it needs Spark 5.1 to 5.2, and this is Spark {spark.version}. " in str(refused.value)
    assert "kudulite_spark.merge(df, path)" in str(refused.value)
