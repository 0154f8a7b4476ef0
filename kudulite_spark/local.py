"""A Spark session on this machine with the settings that kudulite's examples and tests use.

Nothing in the connector needs it: any session works. It only spares the usual stumbles of a local
session, which are a missing Java, Python workers started with another interpreter than this one,
and 200 shuffle partitions on two cores.
"""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from kudulite_spark.jvm import ensure_java


def local_session(
    name: str = "kudulite", *, cores: int = 2, options: Mapping[str, str] | None = None
) -> SparkSession:
    """The running Spark session, or a new one in this process with `cores` task threads.

    `options` are Spark settings that win over the ones set here. Sets JAVA_HOME where it must
    (`ensure_java`), PYSPARK_PYTHON to this interpreter and SPARK_LOCAL_IP to the loopback address,
    all three for this process and its children.
    """
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # By address: the name of a fresh container often does not resolve.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(options or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
