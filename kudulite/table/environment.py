"""The environment of a table: the parts that all tables of a client share.

A client makes one `Environment` and hands it down. `environment_at` is the one that a process has
for a storage, and `default_environment` that of its directories.
"""

import functools
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from weakref import WeakValueDictionary

from kudulite.basefile.block_cache import BlockCache, block_cache_bytes
from kudulite.chain.manifest import Manifest
from kudulite.errors import NotSupportedError
from kudulite.model.hybrid_time import Clock
from kudulite.storage.address import DIRECTORIES, StorageAddress
from kudulite.storage.local_storage import LocalStorage
from kudulite.storage.storage import Storage
from kudulite.table.background_work import BackgroundWork, TableKey
from kudulite.table.metrics import TableMetrics
from kudulite.table.table_memory import TableMemory
from kudulite.table.write_queue import WriteQueue
from kudulite.tablet.superblock import Superblock

# Where the processor time of the log and its later flush meets that of a bulk write: 1,300 rows for
# two tablets of one rowset, 8,000 for eight tablets.
SMALL_WRITE_ROWS_MAX = 1000
FLUSH_BYTES = 64 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Environment:
    """The parts that a client hands down to all tables it opens."""

    storage: Storage
    clock: Clock
    cache: BlockCache
    lock_timeout_seconds: float = 60.0
    # Batches up to this many rows go through the log (bulk_write.py).
    small_write_rows_max: int = SMALL_WRITE_ROWS_MAX
    # Memory of a table's unflushed rows from which on it is flushed.
    flush_bytes: int = FLUSH_BYTES
    # By `TableStore.memory_key`: what the log holds, and the threads that wait to write rows.
    memories: dict[TableKey, TableMemory] = field(default_factory=dict)
    write_queues: dict[TableKey, WriteQueue] = field(default_factory=dict)
    metrics: dict[str, TableMetrics] = field(default_factory=dict)
    # By the folder of its manifests: the newest version of a table that any of its objects has
    # seen. By folder and id: the last opened superblock of a tablet that changed since.
    manifests: dict[str, Manifest] = field(default_factory=dict)
    replaced: dict[tuple[str, str], Superblock] = field(default_factory=dict)
    # Records of writes that are over, which could not be deleted then.
    ended_writes: set[Path] = field(default_factory=set)
    # Sessions of this process that have held rows of its tables, by `id`.
    sessions: WeakValueDictionary[int, object] = field(default_factory=WeakValueDictionary)
    background: BackgroundWork = field(default_factory=BackgroundWork)
    # Whether tablets are maintained after this process wrote to them, and the thread that does it.
    is_maintaining: bool = False
    maintenance: BackgroundWork = field(default_factory=BackgroundWork)


@functools.cache
def default_environment() -> Environment:
    """Return the process's environment of the directories of this machine, made at first use."""
    return _new_environment(LocalStorage())


def environment_at(address: StorageAddress) -> Environment:
    """Return the process's environment of a storage, made at first use.

    Scan tokens and bulk writes that arrive from another process open their table with it, so equal
    addresses share connections and caches. Raises NotSupportedError without the library of object
    stores, and OptionError for an option.
    """
    return default_environment() if address == DIRECTORIES else _environment_of_bucket(address)


def environment_beside(environment: Environment, address: StorageAddress) -> Environment:
    """Return the environment of an address for a call with a table of another one."""
    if environment.storage.address == address:
        return environment
    found = environment_at(address)
    return replace(found, lock_timeout_seconds=environment.lock_timeout_seconds)


@functools.cache
def _environment_of_bucket(address: StorageAddress) -> Environment:
    return _new_environment(bucket_storage(address))


def _new_environment(storage: Storage) -> Environment:
    return Environment(storage, Clock(), BlockCache(storage, block_cache_bytes()))


def bucket_storage(address: StorageAddress) -> Storage:
    """Return the process's storage of a bucket.

    Raises NotSupportedError where the library is not installed, and OptionError for an option.
    """
    try:  # nobody else has to install the library, or to wait until it is imported
        from kudulite.storage.object_storage import object_storage_of
    except ImportError as error:
        raise NotSupportedError(
            f"{address}: the package obstore, which reaches object stores, cannot be imported"
            f" ({error}); run: pip install 'kudulite[object]'"
        ) from error
    return object_storage_of(address)
