"""Spark's reused Python workers: no garbage collection of modules, and no free memory."""

import ctypes
import gc
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from kudulite_spark import python_worker


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
