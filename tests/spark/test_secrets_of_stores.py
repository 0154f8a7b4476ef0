"""No secret of an object store reaches what Spark shows: its event log, plans, errors, web pages.

Each kind of session is a process of its own, whose event log, output and pages are searched for
the secret. Settings and options that Spark has hidden show that the search is in the right places.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.spark.conftest import FRONT
from tests.support.object_server import WRITER, ObjectServer
from tests.support.spark.processes import connect_environment, environment

pytestmark = FRONT

ID, SECRET = WRITER

SCRIPT = """
import json, os, sys, urllib.request

from kudulite_spark import ensure_java

ensure_java()
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

from pyspark.sql import SparkSession

import kudulite_spark

kind, address, given, checkpoint = sys.argv[1:]
options = json.loads(given)
builder = SparkSession.builder
builder = builder.remote("local[2]") if kind == "connect" else builder.master("local[2]")
spark = builder.getOrCreate()
for name, option in (("secret.key", "aws_secret_access_key"), ("access.key", "aws_access_key_id")):
    spark.conf.set(f"spark.hadoop.fs.s3a.{name}", options[option])
for name, value in options.items():
    spark.conf.set(f"spark.kudulite.storage.{name}", value)
kudulite_spark.register(spark, warehouse=address)
if kind == "connect":
    options = {}  # its server logs options as they are, so the documents say: settings only


# Connect plans a query anew for each of these.
modes = ("extended", "formatted", "cost") if kind == "classic" else ("extended",)


def shown(frame):
    for mode in modes:
        frame.explain(mode)
    return frame.collect()


def fails(work):
    try:
        work()
    except Exception as error:
        print("ERROR", error)
    else:
        raise AssertionError("no error")


def sql(text):
    return shown(spark.sql(text))


sql("CREATE NAMESPACE kudulite.db")
sql("CREATE TABLE kudulite.db.t (id BIGINT, s STRING, PRIMARY KEY (id))")
sql("INSERT INTO kudulite.db.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
spark.conf.set("spark.kudulite.repartition", "true")
sql("INSERT INTO kudulite.db.t VALUES (4, 'd')")
sql("UPDATE kudulite.db.t SET s = 'x' WHERE id = 1")
sql("DELETE FROM kudulite.db.t WHERE id = 2")
sql(
    "MERGE INTO kudulite.db.t t USING (SELECT 5L AS id, 'e' AS s) s ON t.id = s.id"
    " WHEN MATCHED AND s.s = 'x' THEN DELETE WHEN NOT MATCHED THEN INSERT *"
)
sql("CALL kudulite.tag('db.t', 'a')")
sql("CALL kudulite.maintain('db.t')")
sql("SELECT * FROM kudulite.db.t VERSION AS OF 'a' WHERE id > 2")
sql("SELECT * FROM kudulite.db.t.versions")
sql(f"SELECT * FROM kudulite.`{address}/db/t`")
sql("DESCRIBE TABLE EXTENDED kudulite.db.t")
sql("SHOW CREATE TABLE kudulite.db.t")
sql("CREATE TABLE kudulite.db.u TBLPROPERTIES ('primaryKey' = 'id') AS TABLE kudulite.db.t")
fails(lambda: sql("SELECT * FROM kudulite.db.nix"))
fails(lambda: sql("CALL kudulite.maintain('db.nix')"))
fails(lambda: sql("INSERT INTO kudulite.db.t VALUES (1, 'a')"))
fails(lambda: sql("CREATE TABLE kudulite.db.w (id BIGINT)"))
frame = spark.read.format("kudulite").options(**options).load(f"{address}/db/t")
assert len(shown(frame)) == 4
shown(kudulite_spark.read_table(spark, f"{address}/db/t"))
kudulite_spark.maintain(spark, f"{address}/db/t")
few = spark.range(9, 11).selectExpr("id", "'few' AS s")
shown(kudulite_spark.repartition_for(few, f"{address}/db/t"))
kudulite_spark.merge(few, f"{address}/db/t").when_not_matched_insert_all().execute()
reader = spark.readStream.format("kudulite").options(**options, startTimestamp="snapshot")
reader = reader.load(f"{address}/db/t")
reader.explain("extended")
writer = reader.writeStream.format("kudulite").options(**options)
writer = writer.options(primaryKey="id", operationColumn="_change_type")
writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
query = writer.start(f"{address}/db/copy")
query.awaitTermination()
if kind == "classic":
    query.explain(True)
print("PROGRESS", query.lastProgress)
for name, wrong in (("timeout", "soon"), ("aws_endpoint_url", "http://127.0.0.1:1")):
    spark.conf.set(f"spark.kudulite.storage.{name}", wrong)
    spark.conf.set("spark.kudulite.storage.max_retries", "0")
    fails(lambda: sql("SELECT * FROM kudulite.db.t"))
    fails(lambda: sql("CALL kudulite.compact('db.t')"))
    spark.conf.set(f"spark.kudulite.storage.{name}", json.loads(given).get(name, "30s"))
if kind == "classic":
    web = spark.sparkContext.uiWebUrl
    root = f"{web}/api/v1/applications/{spark.sparkContext.applicationId}"
    executions = json.load(urllib.request.urlopen(f"{root}/sql?details=true&length=1000"))
    pages = [f"{web}/SQL/execution/?id={one['id']}" for one in executions]
    pages += [f"{root}/sql?details=true&length=1000", f"{root}/environment"]
    pages += [f"{web}/environment/", f"{web}/SQL/", f"{web}/jobs/", f"{web}/StreamingQuery/"]
    for page in pages:
        print("PAGE", urllib.request.urlopen(page).read().decode())
spark.stop()
print("done")
"""


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_no_secret_is_shown(object_server: ObjectServer, tmp_path: Path, kind: str):
    """By SQL of the catalog, procedures, reads, writes, streams, and by their errors."""
    if kind == "connect" and importlib.util.find_spec("grpc") is None:
        pytest.skip("needs grpcio")
    options = object_server.signed_options
    logs, settings = tmp_path / "events", tmp_path / "settings"
    for folder in (logs, settings):
        folder.mkdir()
    given = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.ui.enabled": str(kind == "classic").lower(),
        "spark.ui.port": "0",
        "spark.log.level": "INFO",
        "spark.sql.shuffle.partitions": "2",
        # Of the whole application, and so in its log.
        "spark.kudulite.storage.aws_secret_access_key": SECRET,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
    }
    text = "".join(f"{name} {value}\n" for name, value in given.items())
    (settings / "spark-defaults.conf").write_text(text)
    address = f"s3://{object_server.bucket}/{uuid.uuid4().hex}"
    variables = connect_environment if kind == "connect" else environment
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, address, json.dumps(options), str(tmp_path / "c")],
        # A client of Spark Connect is not told the secrets of its session.
        env=variables(
            SPARK_CONF_DIR=str(settings), AWS_ACCESS_KEY_ID=ID, AWS_SECRET_ACCESS_KEY=SECRET
        ),
        capture_output=True,
        text=True,
        timeout=900,
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said[-5000:]
    files = [path for path in logs.rglob("*") if path.is_file()]
    found = {path.name: path.read_text(errors="replace") for path in files}
    events = "".join(found.values())
    for name in ("spark.kudulite.storage.aws_secret_access_key", "fs.s3a.secret.key"):
        assert f'{name}":"*********(redacted)' in events
    assert "BatchScan" in events and "kudulite.db.t" in events and address in events
    assert "ERROR" in run.stdout and "Physical Plan" in run.stdout
    for place, shown in {**found, "the output": said}.items():
        where = shown.find(SECRET)
        assert where < 0, f"in {place}: …{shown[max(where - 300, 0) : where + 100]}…"
