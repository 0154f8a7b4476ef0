"""The same program of Spark on a directory and on an object store, with the same answers.

Only the address and the settings of the session differ. Without the front, which hands settings
on, the options are those of each read and write. The answers of a directory without the front and
of one by Connect are those of test_session_matrix.py.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import BOTH, FRONT
from tests.support.object_server import WRITER, ObjectServer
from tests.support.spark.one_program import ANSWERS, Answers, answers
from tests.support.spark.processes import connect_environment
from tests.support.spark.spark_tables import configured

# The rows that the program reads. All its answers must be the same for a directory and a store.
EXPECTED: Answers = {
    "operations": [
        [0, "updated 0"],
        [4, "mixed 4"],
        *([k, f"upserted {k}"] for k in range(5, 8)),
        [8, "inserted 8"],
        [9, "ignored 9"],
    ],
    "a filter": [["ignored 9"], ["inserted 8"], ["upserted 6"], ["upserted 7"]],
    "a count": 7,
    "overwritten": [[2, "y 2"], [3, "y 3"], [4, "y 4"]],
    "a key twice": True,
    "before": [[k, f"old {k}"] for k in range(6)],
    "read_table": [[k, f"new {k}"] for k in range(4, 8)],
    "maintained": [[2, "old 2"], [3, "old 3"], *([k, f"new {k}"] for k in range(4, 8))],
    "stream 0": [[2, "old 2"], [3, "old 3"], *([k, f"new {k}"] for k in range(4, 8))],
    "namespaces": [[["db"]], [["db.inner"]]],
    "dropped": [],
    "replaced": [[7, 8]],
    "truncated": [],
    "changed": [[1, "a", 1.5], [3, "c", 9.0], [4, "none", 4.0]],
    "merged by SQL": [[1, "A", 9.0], [4, "alone", 4.0], [5, "E", 5.0]],
    "as of": [[[1, "a", 0.5], [2, "b", 1.5], [3, "c", 2.5]]] * 3,
    "overwritten by SQL": [[6, "f", 6.0]],
    "back": [[18, "w", 1.0], [19, "w", 1.0], [6, "f", 6.0], [8, "w", 1.0], [9, "w", 1.0]],
    "at the end": [[["kept"]], []],
}


# Connect has no RDDs and so no KuduContext.
OF_CLASSIC_SPARK = ("context", "rdd")

pytestmark = FRONT  # statements of SQL with a catalog are a part of the program


def settings_of(server: ObjectServer) -> dict[str, str]:
    """The same as settings of a session."""
    return {
        f"spark.kudulite.storage.{name}": value for name, value in server.signed_options.items()
    }


@pytest.fixture(scope="module")
def directory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answers of a directory, by classic Spark with the front."""
    folder = tmp_path_factory.mktemp("directory")
    found = answers(spark, str(folder / "tables"), folder)
    assert {name: found[name] for name in EXPECTED} == EXPECTED
    return found


@BOTH
def test_on_classic_spark(
    spark: SparkSession,
    object_server: ObjectServer,
    tmp_path: Path,
    directory: Answers,
    front: bool,
):
    """With settings of the session, or without the front with options."""
    address = f"s3://{object_server.bucket}/{uuid.uuid4().hex}"
    options = {} if front else object_server.signed_options
    with configured(spark, settings_of(object_server)):
        assert answers(spark, address, tmp_path, options) == directory


@pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs grpcio")
def test_on_spark_connect(object_server: ObjectServer, tmp_path: Path, directory: Answers):
    """In a session of a client without a JVM, which has the keys in its environment."""
    address = f"s3://{object_server.bucket}/{uuid.uuid4().hex}"
    settings = json.dumps(settings_of(object_server))
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.one_program", address, str(tmp_path), settings],
        # Spark does not tell a client the secrets of its session.
        env=connect_environment(AWS_ACCESS_KEY_ID=WRITER[0], AWS_SECRET_ACCESS_KEY=WRITER[1]),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    expected = {name: directory[name] for name in directory if name not in OF_CLASSIC_SPARK}
    found = json.loads((tmp_path / ANSWERS).read_text())
    assert found == json.loads(json.dumps(expected, default=str))  # of a row JSON has a list
