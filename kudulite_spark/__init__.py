"""Apache Spark connector of kudulite: `spark.read.format("kudulite")` and `df.write`.

The names below are what users may rely on. They are imported when first used, because every Spark
task unpickles a class of this package and must not pay for the parts that only a driver needs.
Type checkers read the names and their types in `__init__.pyi`.
"""

import importlib
from typing import Any

_MODULE_OF = {
    "CreateTableOptions": "kudulite_spark.kudu_context",
    "KuduContext": "kudulite_spark.kudu_context",
    "KuduReadOptions": "kudulite_spark.kudu_context",
    "KuduWriteOptions": "kudulite_spark.kudu_context",
    "MergeBuilder": "kudulite_spark.merge_builder",
    "backup": "kudulite_spark.admin",
    "create_table": "kudulite_spark.admin",
    "ensure_java": "kudulite_spark.jvm",
    "local_session": "kudulite_spark.session",
    "maintain": "kudulite_spark.admin",
    "merge": "kudulite_spark.merge_builder",
    "read_table": "kudulite_spark.native_read",
    "register": "kudulite_spark.session",
    "repartition_for": "kudulite_spark.admin",
    "restore": "kudulite_spark.admin",
    "versions": "kudulite_spark.admin",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'kudulite_spark' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
