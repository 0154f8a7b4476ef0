"""Spark's reused Python workers: their garbage collections skip what was imported.

After each task, and after each step of planning, Spark's daemon runs a full garbage collection in
the worker, which then waits for its next task. A collection walks every object of the imported
modules, about 100,000, and takes several times as long as a commit of a few rows. `freeze_imports`
hides these objects from the collector.

Every step and every task calls it at its end, because some modules are imported late: pyarrow
imports pandas when it makes its first array. It stands alone because planner, reader and writer
need it.
"""

import functools
import gc
import sys

_DAEMON = "pyspark.daemon"


def freeze_imports() -> None:
    """Make later garbage collections of this process skip its present objects.

    Only in a worker of Spark's daemon, because no other process collects after each task, and only
    if modules were imported since the last call. A frozen object without references is still freed;
    only cycles of frozen objects stay.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) == _DAEMON:
        _freeze(len(sys.modules))


@functools.cache
def _freeze(_module_count: int) -> None:
    gc.collect()  # so that no cycle is frozen that is garbage already
    gc.freeze()
