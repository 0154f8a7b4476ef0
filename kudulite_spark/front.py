"""Installing the front: a small jar that lets Spark prune columns and push filters by itself.

Stock Spark gives a Python source neither, and keeps one plan for all queries of a DataFrame. The
front (java/DefaultSource.java, which says how it works) is Java, in a jar of the package. It is
never needed: where it cannot be installed the reason is logged, and the Python source serves.

Spark finds it by its class name, `kudulite.DefaultSource`, once a session has the jar; the Python
source keeps its registration and its name. Only the driver needs the jar.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

JAR = Path(__file__).parent / "java" / "front.jar"
CLASS = "kudulite.DefaultSource"
# It calls classes that are Spark's own affair; in these versions they are the same.
VERSIONS = ("4.1", "4.2", "4.3")

logger = logging.getLogger("kudulite.spark")


def install_front(spark: SparkSession) -> bool:
    """Give a session (classic or Connect) the front; False, with the reason in the log, if not."""
    reason = _why_not(spark)
    if reason is not None:
        logger.warning("the front is not installed: %s; filters and columns stay options", reason)
    return reason is None


def _why_not(spark: SparkSession) -> str | None:
    if not spark.version.startswith(VERSIONS):
        return f"Spark {spark.version} is none of those it was tested with: {', '.join(VERSIONS)}"
    if not JAR.is_file():
        return f"{JAR} is missing"
    try:
        if is_remote():
            spark.addArtifacts(str(JAR))
        elif not _has_front(spark):
            _check(spark)
            spark.sql(f"ADD JAR '{JAR}'")
            if not _has_front(spark):
                return "Spark does not look into jars that were added to the session"
    except (PySparkException, _java_error(), OSError, ValueError) as error:
        return str(error).splitlines()[0]
    return None


def _has_front(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    lookup = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource
    try:
        return (
            str(lookup("kudulite", spark._jsparkSession.sessionState().conf()).getName()) == CLASS
        )
    except _java_error():
        return False  # there is no source of that name yet


def _check(spark: SparkSession) -> None:
    """Link the front with Spark's classes where nobody else sees it; raises if that fails."""
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    urls = gateway.new_array(jvm.java.net.URL, 1)
    urls[0] = jvm.java.io.File(str(JAR)).toURI().toURL()
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader = jvm.java.net.URLClassLoader(urls, parent)
    try:
        make = loader.loadClass(CLASS).getDeclaredConstructor(
            gateway.new_array(jvm.java.lang.Class, 0)
        )
        make.newInstance(gateway.new_array(jvm.java.lang.Object, 0)).check()
    finally:
        loader.close()


def _java_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    return Py4JError
