"""Spark Connect: reading, writing, read_table, SQL and the front through a client without a JVM.

The client is a process of its own, with a server of its own: PySpark knows one of both kinds only.
"""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.spark.conftest import FRONT
from tests.support.spark.processes import connect_environment

pytestmark = FRONT

SCRIPT = """
import json, os, sys

from kudulite_spark import ensure_java

ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

from pyspark.sql import SparkSession

import kudulite
import kudulite_spark
from tests.support.spark.processes import connect_environment
from tests.support.spark.sql_statements import run_random_statements

spark = SparkSession.builder.remote("local[2]").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
path, found = sys.argv[1], {}


def save(frame, **options):
    frame.write.format("kudulite").mode("append").options(**options).save(path)


def rows(frame):
    return sorted(tuple(row) for row in frame.collect())


kudulite_spark.register(spark)
kudulite_spark.create_table(
    spark, path, "k BIGINT, s STRING", primary_key=["k"], hash_partitions=[(["k"], 2)]
)
save(spark.range(100).selectExpr("id AS k", "CAST(id % 5 AS STRING) AS s"))
before = kudulite.open_table(path).current_timestamp()
frame = spark.read.format("kudulite").load(path)
found["written"] = frame.count()
changed = spark.range(90, 110).selectExpr("id AS k", "'new' AS s")
save(kudulite_spark.repartition_for(changed, path))
save(spark.range(3).selectExpr("id AS k"), operation="delete")
found["same moment"] = frame.count()
now = spark.read.format("kudulite").load(path)
found["source"] = rows(now.filter("k < 5 OR k = 95"))
found["plan"] = now.filter("k = 95").select("s")._explain_string()
past = spark.read.format("kudulite").options(snapshotTimestamp=str(before), filter="k < 2")
found["past"] = rows(past.load(path))
native = kudulite_spark.read_table(spark, path)
found["read_table"] = rows(native.filter("k < 5 OR k = 95"))
found["count"] = native.count()
found["where"] = rows(kudulite_spark.read_table(spark, path, columns=["s"], where="k = 12"))
native.createOrReplaceTempView("native")
found["sql"] = rows(spark.sql("SELECT s, count(*) FROM native GROUP BY s HAVING s = 'new'"))
found["past of read_table"] = kudulite_spark.read_table(spark, path, snapshot=before).count()
kudulite_spark.maintain(spark, path)
kudulite_spark.register(spark, warehouse=os.path.dirname(path), catalog="here")
spark.sql("UPDATE here.t SET s = 'sql' WHERE k = 50")
run_random_statements(spark, "here", os.path.dirname(path), seed=1, count=8)
merged = "MERGE INTO here.t t USING (SELECT id AS k FROM range(90, 92)) s ON t.k = s.k"
spark.sql(f"{merged} WHEN MATCHED THEN DELETE")
found["merged"] = rows(spark.sql("SELECT * FROM here.t WHERE k BETWEEN 89 AND 92"))
found["operation"] = kudulite.open_table(path).versions()[0].operation
spark.sql("INSERT INTO here.t SELECT id, 'new' FROM range(90, 92)")
few = spark.range(51, 53).selectExpr("id AS k", "'merged' AS s")
kudulite_spark.merge(few, path).when_matched_update_all(few["k"] == 51).execute()
found["catalog"] = rows(spark.sql("SELECT * FROM here.t WHERE k BETWEEN 50 AND 51"))
found["maintained"] = kudulite_spark.read_table(spark, path).count()
other = path + "-of-few-changes"
kudulite_spark.create_table(spark, other, "k BIGINT, s STRING", primary_key=["k"])
kudulite.open_table(other).insert({"k": list(range(100)), "s": ["old"] * 100})
kudulite.open_table(other).flush()
kudulite.open_table(other).update({"k": [7], "s": ["new"]})
kudulite.open_table(other).delete({"k": [8]})
few = kudulite_spark.read_table(spark, other)
found["few changes"] = [few.count(), rows(few.filter("k BETWEEN 6 AND 9"))]
found["scans"] = [few._explain_string().count(name) for name in ("FileScan parquet", "Union")]
try:
    spark.read.format("kudulite").option("nonsense", "1").load(path).count()
except Exception as error:
    found["refused"] = str(error)
print(json.dumps(found))
spark.stop()
"""


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs grpcio")
def test_a_client_reads_writes_and_maintains(tmp_path):
    """As on classic Spark: one moment per load, the front, base data read by Spark, and SQL."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "t")],
        env=connect_environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout.splitlines()[-1])
    assert "PushedFilters: [EqualTo(k,95)]" in found.pop("plan")
    assert "unknown option 'nonsense'" in found.pop("refused")
    some = [[3, "3"], [4, "4"], [95, "new"]]
    assert found == {
        "written": 100,
        "same moment": 100,
        "source": some,
        "past": [[0, "0"], [1, "1"]],
        "read_table": some,
        "count": 107,
        "where": [["2"]],
        "sql": [["new", 20]],
        "past of read_table": 100,
        "merged": [[89, "4"], [92, "new"]],
        "operation": "delete_ignore",
        "catalog": [[50, "sql"], [51, "merged"]],
        "maintained": 107,
        "few changes": [99, [[6, "old"], [7, "new"], [9, "old"]]],
        "scans": [1, 0],
    }
