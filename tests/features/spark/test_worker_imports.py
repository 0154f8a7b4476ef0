"""What Spark's Python processes import: each starts with nothing, and the user waits for it."""

from pathlib import Path

from tests.support.imports import imported_by, packages

# Parts that no read and no write of rows needs.
OTHERS = {"kudulite.backups", "kudulite.kudu", "kudulite.tools", "obstore", "sqlglot"}


def test_the_source_imports_the_errors_only():
    """The engine is imported by the step that opens a table."""
    modules = imported_by("import pyspark.sql, pyarrow, kudulite_spark.datasource")
    assert {name for name in packages(modules) if "kudulite" in name} == {"kudulite.errors"}
    assert {"pandas", "sqlglot", "kudulite_spark.session", "kudulite_spark.admin"} & {*modules} == (
        set()
    )


def test_a_task_of_a_read_imports_the_reader_only():
    """Spark unpickles the reader in each worker; it needs no catalog and no writer."""
    modules = imported_by("import kudulite_spark.reader")
    names = {name for name in modules if name.startswith("kudulite_spark.")}
    assert {"kudulite_spark.datasource", "kudulite_spark.sql.catalog"} & names == set()
    assert {"kudulite_spark.write_plan", "kudulite_spark.stream_reader"} & names == set()


def test_the_steps_of_a_write_and_a_read_import_no_other_part(tmp_path: Path):
    """Planning, tasks and commit in one process, which is more than any of them."""
    code = f"""
import pyarrow as pa
from types import SimpleNamespace
from unittest import mock
from pyspark.sql.types import LongType, StructField, StructType
from kudulite_spark.datasource import KuduliteDataSource
path = {str(tmp_path / "t")!r}
schema = StructType([StructField("k", LongType()), StructField("v", LongType())])
writer = KuduliteDataSource({{"path": path, "primaryKey": "k"}}).writer(schema, False)
task = SimpleNamespace(getLocalProperty=lambda name: None)
for name in ("partitionId", "attemptNumber", "taskAttemptId"):
    setattr(task, name, lambda: 0)
with mock.patch("pyspark.TaskContext.get", lambda: task):
    message = writer.write(iter([pa.record_batch({{"k": [1, 2], "v": [3, 4]}})]))
writer.commit([message])
source = KuduliteDataSource({{"path": path}})
reader = source.reader(source.schema())
rows = [batch for part in reader.partitions() for batch in reader.read(part)]
assert sum(len(batch) for batch in rows) == 2
"""
    found = packages(imported_by(code))
    assert "kudulite.client" in found
    assert found & OTHERS == set()
