"""Spark's reused Python workers collect no garbage among the imported modules."""

import gc
import sys
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
    python_worker.freeze_imports()
    assert not frozen


def test_a_worker_freezes_its_objects_once_and_after_further_imports(monkeypatch, frozen):
    """Later tasks of a worker do not freeze again, unless modules were imported."""
    _run_as(monkeypatch, "pyspark.daemon")
    python_worker.freeze_imports()
    python_worker.freeze_imports()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
    python_worker.freeze_imports()
    assert len(frozen) == 2
