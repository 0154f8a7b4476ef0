"""Which xdist worker runs which file: few workers start Spark, and these begin with its files.

A session is a JVM with Python workers, two to three GB, and costs as much processor time as all
tests of the quick tier that use it. So that tier has one. The full tier has two where the memory
suffices: its tests of Spark take longer than all the others, and one worker would be busy with
them long after the rest. Files are taken one by one, so that both end at about the same time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# All the tests of the quick tier that start Spark, and some others.
STARTS_SPARK = ("tests/spark/", "tests/structure/test_documents.py")
SPARK_WORKERS_MAX = 2
# The session of a worker, with the programs that some tests start and the files in memory.
SPARK_WORKER_BYTES = 6 << 30
# A container's limit; "max" where there is none.
_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def spark_worker_count(config: pytest.Config) -> int:
    """How many workers may start Spark in this run."""
    if config.getoption("markexpr") != "full":
        return 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for place in _MEMORY_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            memory = min(memory, int(place.read_text()))
    return max(1, min(SPARK_WORKERS_MAX, memory // SPARK_WORKER_BYTES))


class FewSparkWorkers(LoadFileScheduling):
    """Gives each file to one worker, and those that start Spark to `spark_workers` of them.

    Groups for --dist=loadgroup would need a fixed division, and xdist 3.8 does not see them under
    pytest 9.2.
    """

    def __init__(self, config: pytest.Config, log: Any, spark_workers: int) -> None:
        super().__init__(config, log)
        self._spark_workers = spark_workers
        self._with_spark: set[Any] = set()

    def _assign_work_unit(self, node: Any) -> None:
        """Give a worker the first file that it may have; it keeps what it has if there is none."""
        scope = self._next_scope(node)
        if scope is None:
            return
        if scope.startswith(STARTS_SPARK):
            self._with_spark.add(node)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        """Give a worker more to do; one that may have none of what is left ends with what it has.

        A worker runs its last test when it has another one or is shut down.
        """
        if self.workqueue and self._next_scope(node) is None and not node.shutting_down:
            node.shutdown()
            return
        super()._reschedule(node)

    def _next_scope(self, node: Any) -> str | None:
        # A worker that has crashed is not among the nodes; its place is free.
        taken = self._with_spark & self.assigned_work.keys()
        may_start = node in taken or len(taken) < self._spark_workers
        others = (scope for scope in self.workqueue if not scope.startswith(STARTS_SPARK))
        if may_start:
            starting = (scope for scope in self.workqueue if scope.startswith(STARTS_SPARK))
            return next(starting, None) or next(others, None)
        return next(others, None)
