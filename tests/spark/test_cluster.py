"""Executors that are processes of their own: what they need arrives with the job.

Spark's `local-cluster` starts them on this machine. benchmarks/cluster.py has hosts of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

SCRIPT = """
import sys

import kudulite
import kudulite_spark
from kudulite_spark.session import has_front

path = sys.argv[1]
settings = {"spark.master": "local-cluster[1,1,640]", "spark.executor.memory": "640m"}
for number in (1, 2):
    spark = kudulite_spark.local_session(f"session {number}", options=settings)
    kudulite_spark.register(spark)
    rows = spark.range(number * 10).selectExpr("id AS k", "'session' AS s")
    rows.write.format("kudulite").mode("append").option("primaryKey", "k").save(path)
    found = spark.read.format("kudulite").load(path)
    assert has_front(spark) and found.filter("k < 5").count() == 5
    assert found.count() == kudulite.open_table(path).scan().count() == number * 10
    spark.stop()
print("done")
"""


def test_a_second_session_of_a_process_sends_the_front_to_its_executors(tmp_path):
    """The driver's class loader keeps the jar of the first session, whose executors are gone."""
    root = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "t")],
        env=os.environ
        | {
            "PYTHONPATH": root,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        },
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0 and "done" in run.stdout, run.stderr[-3000:]
