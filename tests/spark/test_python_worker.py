"""Spark's reused Python workers: no garbage collection of modules, and no free memory."""

import ctypes
import gc
import json
import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from kudulite_spark import datasource, python_worker
from kudulite_spark.datasource import CATALOG_LOAD, KuduliteDataSource
from kudulite_spark.options import CATALOG, FRONT


@pytest.fixture
def frozen(monkeypatch) -> list[str]:
    """The calls of gc.freeze, which is replaced."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    python_worker._freeze.cache_clear()
    yield calls
    python_worker._freeze.cache_clear()


def _run_as(monkeypatch, main) -> None:
    spec = None if main is None else SimpleNamespace(name=main)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))


@pytest.mark.parametrize("main", ["pytest", None])
def test_a_process_that_is_not_a_worker_of_the_daemon_freezes_nothing(monkeypatch, frozen, main):
    """A driver, and a worker without a daemon, keep their garbage collection as it is."""
    _run_as(monkeypatch, main)
    python_worker.end_work()
    assert not frozen


def test_a_worker_freezes_its_objects_once_and_after_further_imports(monkeypatch, frozen):
    """Later tasks of a worker do not freeze again, unless modules were imported."""
    _run_as(monkeypatch, "pyspark.daemon")
    python_worker.end_work()
    python_worker.end_work()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
    python_worker.end_work()
    assert len(frozen) == 2


QUESTIONS = (
    ("", {"call": "warehouse"}),
    ("db", {"call": "createNamespace"}),
    ("db/t", {"call": "create", "partitions": [], "key": ["id"], "properties": {}}),
    ("db/t", {"call": "alter", "steps": [{"step": "SetProperty", "property": "comment"}]}),
    ("db/t", {"call": "truncate"}),
    ("db/t", {"call": "moment", "version": "a tag"}),
    ("db", {"call": "tables"}),
    ("", {"call": "namespaces"}),
    ("db/t", {"call": "rename", "to": "db/u"}),
    ("db/t", {"call": "drop"}),  # an error is an answer, too
    ("db/u", {"call": "drop"}),
    ("db", {"call": "dropNamespace", "cascade": False}),
)


def test_each_answer_to_the_catalog_ends_its_work(monkeypatch, tmp_path):
    """No thread and no open file stays behind, and the worker's end is called once for each."""
    ended = []
    monkeypatch.setattr(datasource, "end_work", lambda: ended.append(len(ended)))
    schema = StructType([StructField("id", LongType(), False)])
    threads, files = threading.enumerate(), sorted(os.listdir("/proc/self/fd"))
    for name, question in QUESTIONS:
        call = {**question, "schema": schema.json(), "zone": "UTC"}
        if "to" in call:
            call["to"] = str(tmp_path / str(call["to"]))
        options = {"path": str(tmp_path / name), CATALOG: json.dumps(call)}
        KuduliteDataSource(options).schema()
    missing = KuduliteDataSource({"path": str(tmp_path / "no"), FRONT: CATALOG_LOAD}).schema()
    assert missing.fields[0].metadata["kudulite.table"]["error"] == "TableNotFoundError"
    assert len(ended) == len(QUESTIONS) + 1
    assert threading.enumerate() == threads
    assert sorted(os.listdir("/proc/self/fd")) == files
    assert not os.listdir(tmp_path)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc")
def test_a_worker_returns_the_memory_that_a_task_has_freed(monkeypatch, frozen):
    """Pages between objects that are still used are returned as well."""
    _run_as(monkeypatch, "pyspark.daemon")
    blocks = [b"x" * 20_000 for _ in range(4_000)]  # 80 MB
    kept = blocks[::50]
    python_worker.end_work()
    before = _resident_bytes()
    del blocks
    python_worker.end_work()
    assert len(kept) == 80
    assert before - _resident_bytes() > 60e6
