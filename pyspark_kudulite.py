"""How Spark finds `format("kudulite")` by itself: as DefaultSource in a `pyspark_*` module.

Spark imports every such module on its workers' path at once, and one that raises hides all the
others. Hence nothing but Spark's own class is imported here; the connector is loaded at first use.

`main` is the worker of the front, in which all steps of planning run. Spark's daemon runs only
modules whose names begin with `pyspark`; without a daemon, the front plans as stock Spark does.
"""

import importlib
import os
from collections.abc import MutableMapping
from typing import IO, Any

from pyspark.sql.datasource import DataSource

# With it, PySpark reports the error of a worker without its trace.
_HIDE_TRACE = "SPARK_HIDE_TRACEBACK"


class DefaultSource(DataSource):
    """Stands for `kudulite_spark.datasource.KuduliteDataSource` until an instance is asked for."""

    def __new__(cls, options: MutableMapping[str, str]) -> Any:
        """Return an instance of the real source."""
        module = importlib.import_module("kudulite_spark.datasource")
        return module.KuduliteDataSource(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kudulite"


def main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    """Run one of Spark's steps of planning: first its module's name is sent, then its input."""
    from pyspark.sql.worker.utils import worker_run

    worker_run(_run_step, infile, outfile)


def _run_step(infile: IO[bytes], outfile: IO[bytes]) -> None:
    from pyspark.worker_util import utf8_deserializer

    os.environ.pop(_HIDE_TRACE, None)
    module = importlib.import_module(utf8_deserializer.loads(infile))
    try:
        module._main(infile, outfile)
    except Exception as error:
        # The message of our own errors says what to do, and Spark shows the user all that it gets.
        if type(error).__module__ == "kudulite.errors":
            os.environ[_HIDE_TRACE] = "true"
        raise
