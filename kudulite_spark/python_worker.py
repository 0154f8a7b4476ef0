"""Spark's reused Python workers: what each step and task does at its end.

**Imports.** After each task, and after each step of planning, Spark's daemon runs a full garbage
collection in the worker, which then waits for its next task. A collection walks every object of the
imported modules, about 100,000, and takes several times as long as a commit of a few rows.
`end_work` hides these objects from the collector. Every step and every task does so, because some
modules are imported late: pyarrow imports pandas when it makes its first array.

**Memory.** A worker stays until the session ends. Arrow's pool and the C library keep most memory
that is freed, for the next allocation of the process, which may be of another task minutes later.
There are as many workers as cores, so `end_work` returns this memory to the system.

The module stands alone because planner, reader and writer need it.
"""

import ctypes
import functools
import gc
import sys
from collections.abc import Callable

import pyarrow as pa

_DAEMON = "pyspark.daemon"


def end_work() -> None:
    """Make later garbage collections skip the present objects, and return free memory.

    Only in a worker of Spark's daemon, because no other process collects after each task, and only
    if modules were imported since the last call. A frozen object without references is still freed;
    only cycles of frozen objects stay. Returning memory takes 0.2 ms if there is none.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) == _DAEMON:
        _freeze(len(sys.modules))
        return_memory()


@functools.cache
def _freeze(_module_count: int) -> None:
    gc.collect()  # so that no cycle is frozen that is garbage already
    gc.freeze()


def return_memory() -> None:
    """Return the memory that Arrow and the C library keep for later to the system."""
    pa.default_memory_pool().release_unused()
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    return getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
