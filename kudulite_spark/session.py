"""Making a Spark session know the source: `register`.

Where the package is installed for the Python that Spark's workers run, Spark finds the source by
itself (`pyspark_kudulite`). `register` is for everything else: a session whose workers would run
another Python than this one, a checkout that is not installed, or a format name taken by another.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.front import install_front


def register(spark: SparkSession) -> None:
    """Register the format `kudulite` with a session (classic or Connect).

    Installs the front too, where it can be: Spark then prunes columns and pushes filters (`front`).
    In a local session the workers of the source get this interpreter, unless PYSPARK_PYTHON chose
    one, and find the package where this process found it. On a cluster they need it installed."""
    if not is_remote() and (spark.sparkContext.master or "").startswith("local"):
        context = spark.sparkContext
        if "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable
        _add_python_path(context.environment, str(Path(__file__).resolve().parents[1]))
    spark.dataSource.register(KuduliteDataSource)
    install_front(spark)


def start_directory(spark: SparkSession) -> str | None:
    """Return the directory in which the session's JVM was started; None where it is not known."""
    if is_remote():
        return None
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return str(jvm.java.lang.System.getProperty("user.dir"))


def _add_python_path(environment: dict[str, str], folder: str) -> None:
    """Let workers import from `folder`; a change gives them processes of their own."""
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if folder not in inherited and "site-packages" not in folder:
        own = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        if folder not in own:
            environment["PYTHONPATH"] = os.pathsep.join([*own, folder])
