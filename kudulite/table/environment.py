"""The environment of a table: the parts that all tables of a client share.

A client makes one `Environment` and hands it down; `default_environment` is the one of the process.
"""

import functools
import logging
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from kudulite.basefile.block_cache import BlockCache, block_cache_bytes
from kudulite.chain.manifest import Manifest
from kudulite.model.hybrid_time import Clock
from kudulite.storage.file_system import FileSystem
from kudulite.table.background_work import BackgroundWork, TabletKey
from kudulite.table.metrics import TableMetrics
from kudulite.table.row_queue import RowQueue
from kudulite.tablet.mem_stores import MemStores
from kudulite.tablet.superblock import Superblock

SMALL_WRITE_ROWS_MAX = 1000
FLUSH_BYTES = 64 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Environment:
    """The parts that a client hands down to all tables it opens."""

    file_system: FileSystem
    clock: Clock
    cache: BlockCache
    lock_timeout_seconds: float = 60.0
    # Arrow batches up to this many rows, all of one tablet, go through its log (bulk_write.py).
    small_write_rows_max: int = SMALL_WRITE_ROWS_MAX
    # Memory of a tablet's unflushed rows from which on it is flushed.
    flush_bytes: int = FLUSH_BYTES
    # By `TableStore.tablet_key`: the newest memory with its superblock's name, and the threads
    # that wait to write rows. `TableStore.forget` removes both with the superblock.
    memories: dict[TabletKey, tuple[str, MemStores | None]] = field(default_factory=dict)
    row_queues: dict[TabletKey, RowQueue] = field(default_factory=dict)
    metrics: dict[str, TableMetrics] = field(default_factory=dict)
    # By the folder of its manifests: the newest version of a table that any of its objects has
    # seen. By `TableStore.tablet_key`: the last opened superblock of a tablet that changed since.
    manifests: dict[str, Manifest] = field(default_factory=dict)
    replaced: dict[TabletKey, Superblock] = field(default_factory=dict)
    # Sessions of this process that have held rows of its tables, by `id`.
    sessions: WeakValueDictionary[int, object] = field(default_factory=WeakValueDictionary)
    background: BackgroundWork = field(default_factory=BackgroundWork)
    # Whether tablets are maintained after this process wrote to them, and the thread that does it.
    is_maintaining: bool = False
    maintenance: BackgroundWork = field(default_factory=BackgroundWork)


@functools.cache
def default_environment() -> Environment:
    """Return the process's environment, made at first use.

    Scan tokens and bulk writes that arrive from another process open their table with it.
    """
    return Environment(FileSystem(), Clock(), BlockCache(block_cache_bytes()))
