"""KuduContext's writes without Spark: each method is one write with the operation of its name."""

from types import SimpleNamespace

import pytest

import kudulite
from kudulite_spark import kudu_context
from kudulite_spark.kudu_context import KuduContext, KuduWriteOptions
from kudulite_spark.options import WriteOptions

METHODS = {
    "insertRows": "insert",
    "insertIgnoreRows": "insert_ignore",
    "upsertRows": "upsert",
    "upsertIgnoreRows": "upsert_ignore",
    "updateRows": "update",
    "updateIgnoreRows": "update_ignore",
    "deleteRows": "delete",
    "deleteIgnoreRows": "delete_ignore",
}


class Frame:
    """Stands for a DataFrame: remembers how it is written."""

    def __init__(self) -> None:
        self.write = self
        self.sparkSession = None
        self.calls: list[tuple] = []
        self.given: dict[str, str] = {}

    def format(self, name: str) -> "Frame":
        """As DataFrameWriter's, like the others."""
        self.calls.append(("format", name))
        return self

    def mode(self, name: str) -> "Frame":
        """Remember it."""
        self.calls.append(("mode", name))
        return self

    def options(self, **given: str) -> "Frame":
        """Remember them."""
        self.given |= given
        return self

    def option(self, name: str, value: str) -> "Frame":
        """Remember it."""
        return self.options(**{name: value})

    def save(self, path: str) -> None:
        """End."""
        self.calls.append(("save", path))


@pytest.fixture
def context(tmp_path, monkeypatch) -> KuduContext:
    """A context without a session, over a directory with one table."""
    monkeypatch.setattr(kudu_context, "start_directory", lambda spark: None)
    monkeypatch.setattr(kudu_context, "activate", lambda spark: None)
    columns = [kudulite.column("id", kudulite.int64)]
    kudulite.connect(tmp_path, background_maintenance=False).create_table(
        "t", kudulite.schema(columns, "id")
    )
    return KuduContext(SimpleNamespace(), str(tmp_path))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("options", [None, KuduWriteOptions(ignoreNull=True)])
def test_a_method_is_a_write_with_its_operation(context, method: str, options):
    """Appended, with the options that were given."""
    frame = Frame()
    getattr(context, method)(frame, "t", options)
    path = f"{context.root}/t"
    assert frame.calls == [("format", "kudulite"), ("mode", "append"), ("save", path)]
    write = WriteOptions.parse({"path": path, **frame.given})
    assert write.operation == METHODS[method]
    assert write.ignore_null == (options is not None)


def test_ignored_duplicates_and_routed_rows(context, monkeypatch):
    """The one makes an insert an insert_ignore, the other sends rows to their tablet's task."""
    routed = []
    monkeypatch.setattr(
        kudu_context, "repartition_for", lambda frame, path: routed.append(path) or frame
    )
    frame = Frame()
    options = KuduWriteOptions(ignoreDuplicateRowErrors=True, repartition=True)
    context.insertRows(frame, "t", options)
    assert routed == [f"{context.root}/t"]
    write = WriteOptions.parse({"path": "/t", **frame.given})
    assert (write.operation, write.repartition) == ("insert_ignore", True)
