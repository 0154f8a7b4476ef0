"""How Spark finds `format("kudulite")` by itself: as DefaultSource in a `pyspark_*` module.

Spark imports every such module on its workers' path at once, and one that raises hides all the
others. Hence nothing but Spark's own class is imported here; the connector is loaded at first use.
"""

import importlib
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource


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
