"""Executors that are processes of their own: what they need arrives with the job.

Spark's `local-cluster` starts them on this machine, and so do a master and two workers of Spark's
standalone cluster. benchmarks/cluster.py has hosts of their own.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from kudulite_spark.jvm import ensure_java
from tests.spark.conftest import FRONT

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

STATEMENTS = """
import os
import sys

import kudulite_spark
from tests.support.spark.sql_statements import made, run_random_statements, stored

master, folder = sys.argv[1:]
options = {
    "spark.master": master,
    "spark.executor.memory": "640m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
}
spark = kudulite_spark.local_session("standalone", options=options)
kudulite_spark.register(spark, warehouse=folder)
t = "kudulite.t"
model = made(spark, t)
spark.sql("CALL kudulite.tag('t', 'first')")
first = dict(model)
spark.sql(f"UPDATE {t} SET v = v + 1 WHERE id < 5")
model |= {k: (host, v + 1) for k, (host, v) in first.items() if k < 5}
spark.range(5, 400, 1, 8).createOrReplaceTempView("source")
spark.conf.set("spark.kudulite.repartition", "true")
spark.sql(
    f"MERGE INTO {t} t USING source s ON t.id = s.id WHEN MATCHED AND s.id = 7 THEN DELETE"
    " WHEN MATCHED THEN UPDATE SET host = 'merged'"
    " WHEN NOT MATCHED THEN INSERT (id, host, v) VALUES (s.id, 'new', 0D)"
)
model |= {k: ("merged", first[k][1]) for k in range(5, 10)}
model |= {k: ("new", 0.0) for k in range(10, 400)}
del model[7]
assert stored(spark, t) == model
assert stored(spark, f"{t} VERSION AS OF 'first'") == first
counts = {row["host"]: row["count"] for row in spark.table(t).groupBy("host").count().collect()}
assert (counts["merged"], counts["new"], sum(counts.values())) == (4, 390, 399)
run_random_statements(spark, "kudulite", folder, seed=3, count=2)
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
assert len(executors) == 3, "the driver and an executor on each worker"
spark.stop()
print("done")
"""


@contextmanager
def daemon(log: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Spark's standalone cluster on the loopback; it ends in five minutes at most."""
    ensure_java()
    start = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    command = [start, f"org.apache.spark.deploy.{name}"]
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["timeout", "300", *command, *ports, *arguments],
            env=environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)


def found_in(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until a daemon logs a text, and return the text."""
    while process.poll() is None:
        if found := re.search(pattern, log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


def environment() -> dict[str, str]:
    """That of this process, with the package and the tests for workers to import."""
    return os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
    }


@FRONT
@pytest.mark.full
def test_statements_of_sql_on_a_standalone_cluster_with_the_jar_of_register(tmp_path):
    """A master and two workers: `register` sends the jar, and all rows equal a dictionary."""
    log = tmp_path / "master"
    workers = ["--cores", "1", "--memory", "700m", "--work-dir", str(tmp_path / "work")]
    with daemon(log, "master.Master") as process:
        master = found_in(log, r"spark://127\.0\.0\.1:[1-9]\d*", process)
        with (
            daemon(tmp_path / "worker 1", "worker.Worker", *workers, master),
            daemon(tmp_path / "worker 2", "worker.Worker", *workers, master),
        ):
            run = subprocess.run(
                [sys.executable, "-c", STATEMENTS, master, str(tmp_path / "warehouse")],
                env=environment(),
                capture_output=True,
                text=True,
                timeout=280,
            )
    assert run.returncode == 0 and "done" in run.stdout, run.stderr[-3000:]


@FRONT
def test_a_second_session_of_a_process_sends_the_front_to_its_executors(tmp_path):
    """The driver's class loader keeps the jar of the first session, whose executors are gone."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "t")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert run.returncode == 0 and "done" in run.stdout, run.stderr[-3000:]
