"""The log of a table and the turn to write: the verbs that a table needs of either kind.

    directory_log.py    segments in a folder, and a lock between processes
    chain_log.py        records in the chain of versions, for storage without files that grow

A write to the table is a turn: it reads the newest state, makes one change of it, and appends a
record to the log or publishes a version.

    with a lock         the turn begins when it has the lock, so nobody comes first
    in the chain        the turn ends by the creation of the next entry; where another writer has
                        created it, nothing was written, and the turn is taken again

`TableStore.in_turn` takes turns until one is the first. So the work of a turn may be done several
times. It must not count on what an earlier attempt has made, and may leave files that no version
has.

**Threads**: a log belongs to its `TableStore`, and any thread may use it. A turn belongs to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kudulite.chain.manifest import Manifest
from kudulite.storage.storage import Listed
from kudulite.table.table_memory import TableMemory
from kudulite.wal.log_reader import LogTail
from kudulite.wal.segment import LogPosition


class LostRaceError(Exception):
    """Another writer came first: the turn has written nothing, and is to be taken again."""


class LogState(NamedTuple):
    """The log and the newest version as a reader finds them without a turn.

    All commits up to `safe_timestamp` are before `end`, which is None where it is not known.
    `is_of_this_boot`: the end was noted on this machine, which has not been started again since.
    `identity` is that of the place of the log, which a copy of the table does not have.
    """

    manifest: Manifest
    safe_timestamp: int
    end: LogPosition | None
    is_of_this_boot: bool
    identity: object


class Turn(Protocol):
    """A turn to write to a table; a context manager, which may be entered again."""

    timeout_seconds: float

    @property
    def identity(self) -> object:
        """The identity of the log's place, as in `LogState`."""

    @property
    def safe_timestamp(self) -> int:
        """The time up to which no other commit can come."""

    @property
    def log_end(self) -> tuple[int, int]:
        """The end of the log's durable part, a `LogPosition`; (0, 0) where it is not known."""

    def newest(self) -> Manifest:
        """Return the newest version, which the turn may follow."""

    def newest_of(self, table_id: str) -> Manifest:
        """Return the newest version of a table. Raises ConflictError for another one."""

    def announce(self, work: str) -> None:
        """Say what the turn is for, to those that wait for it."""

    def advance_safe_timestamp(self, timestamp: int) -> None:
        """Let no later commit have a time up to `timestamp`. Raises StorageError."""

    def renew(self) -> None:
        """Take the turn again, where another writer came first. Raises LockTimeoutError."""

    def check_is_first(self) -> None:
        """Raise LostRaceError where another writer came first.

        Then what the turn has found may not be so any more. If it has written something since, it
        was the first.
        """

    def close(self) -> None:
        """Give up what is kept between turns."""

    def __enter__(self) -> Turn: ...

    def __exit__(self, *_exc: object) -> None: ...


class TableLog(Protocol):
    """The log of one table."""

    def create(self, safe_timestamp: int = 0) -> None:
        """Make what the log of a new table needs, before its first version of a time."""

    def turn(
        self,
        timeout_seconds: float,
        *,
        is_shared: bool = False,
        stays_open: bool = False,
        has_looked: bool = False,
    ) -> Turn:
        """Return a turn, for a `with`; it waits for others up to the timeout.

        One that `is_shared` only keeps writers out, where that can be done. Where the caller
        `has_looked` for the newest state, a turn that needs no lock may follow that.
        """

    def look(self, until: int) -> LogState:
        """Return the newest state, or one that has all up to a moment, without a turn.

        Raises as `VersionChain.newest`, StorageError.
        """

    def is_longer(self, end: LogPosition) -> bool:
        """Whether there may be commits behind the durable end that nobody has noted."""

    def is_rolled_back(self, held: LogPosition) -> bool:
        """Whether the log ends before a position up to which this process has read it."""

    @property
    def is_writable(self) -> bool:
        """Whether this process may take turns."""

    def is_settled(self, turn: Turn, memory: TableMemory) -> bool:
        """Whether memory has all that the log holds, without a look at more of the log."""

    def settle(self, turn: Turn, manifest: Manifest) -> LogPosition:
        """Return where the log ends, everything before it durable.

        Raises CorruptionError, StorageError.
        """

    def read(self, table_id: str, start: LogPosition, end: LogPosition | None) -> LogTail:
        """Return the commits between two positions, or from one on. Raises as `read_log`."""

    def append(
        self, turn: Turn, memory: TableMemory, commits: Sequence[bytes], timestamp: int
    ) -> LogPosition:
        """Append commits in one step, durably, the last of them at `timestamp`; return the end.

        Readers see them from then on. Raises StorageError, CorruptionError, LostRaceError; nothing
        is written then, unless the error says so.
        """

    def publish(
        self, turn: Turn, fit: Callable[[Manifest], Manifest | None], newest: Manifest
    ) -> Manifest | None:
        """Publish `fit(newest)`, the version that follows `newest`; None where `fit` gives up.

        The version that `fit` is given may have another number than `newest`. Raises ConflictError,
        CorruptionError, StorageError, LostRaceError.
        """

    def roll(self, turn: Turn, memory: TableMemory) -> None:
        """Let what is before the log's end be removed on its own, once rowsets have it."""

    def fence(self, turn: Turn) -> None:
        """Make all turns fail that have begun before this one; it may still publish.

        So files of no version that were there before belong to nobody. Raises StorageError,
        LostRaceError.
        """

    def end(self, turn: Turn, *, is_first: bool) -> None:
        """Refuse all later turns: the table was deleted. Only a recall can `resume` it.

        With `is_first`, raises LostRaceError where another writer came since the turn began.
        """

    def refuse_all(self) -> None:
        """Refuse all later turns of a table that is removed, as its killed deletion has not.

        Raises LockTimeoutError, StorageError.
        """

    def resume(self, turn: Turn) -> bool:
        """Allow turns again, if the log has an end; return whether it had."""

    def files_before(self, segment: int) -> list[Listed]:
        """Return the files of the log that have nothing from a segment on."""

    def has_grown_long(self) -> bool:
        """Whether the last append makes this process the one that should flush the table."""

    @property
    def nbytes(self) -> int:
        """The bytes of the log in storage."""
