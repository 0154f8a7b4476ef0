"""The log of a table in its chain of entries, for storage without files that grow and locks.

A turn is an attempt: it begins at an entry of the chain, and what it appends or publishes is the
next one. Where another writer has created that, the attempt has failed, and the turn begins again
at the newest entry. Each failure is the success of another writer. An own entry moves the turn on,
so a turn may have several.

Of several processes that append, the one that has won would win again, because it is the first to
know the newest entry. So a process that has appended lets as many entries pass, by the clock, as
there are other writers among the last ones (`EntryChain.seconds_to_wait`).

A turn that publishes a version takes longer than an append. When it has lost thrice, it appends a
record without rows that asks those who append to wait for twice as long as its last attempt took,
which may have ended early, and doubles that with each loss. The order is right if they do not.

A turn of rows begins where this process has left the chain, without a look for newer entries: the
creation of its entry shows that there were none. A turn that creates none has to look before it
reports a row error.

**Threads**: any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kudulite.chain.entry_chain import Entries, EntryChain
from kudulite.chain.manifest import Manifest
from kudulite.chain.record_entry import position_after
from kudulite.errors import CorruptionError, LockTimeoutError, TableNotFoundError
from kudulite.model.hybrid_time import Clock
from kudulite.storage.storage import Listed
from kudulite.table.table_log import LogState, LostRaceError, Turn
from kudulite.table.table_memory import SupersededError, TableMemory
from kudulite.wal.commit_format import LoggedCommit
from kudulite.wal.log_reader import LogTail
from kudulite.wal.segment import LogPosition

# A cold reader gets these side by side, and a flush folds them.
RECORDS_MAX = 64
_FLUSH_EACH = 16
_REFUSE_SECONDS = 20.0
_LOST_BEFORE_ASKING = 3


@dataclass
class ChainTurn:
    """An attempt to write the next entry of a chain; see the head."""

    chain: EntryChain
    timeout_seconds: float
    goes_on: bool
    has_looked: bool = False
    _entries: Entries | None = None
    _deadline: float = 0.0
    _lost_count: int = 0
    _begun: float = 0.0  # the attempt
    _asked_seconds: float = 0.0

    identity: object = None

    def __enter__(self) -> ChainTurn:
        self._begun = time.monotonic()
        self._deadline = self._begun + self.timeout_seconds
        self._lost_count, self._asked_seconds = 0, 0.0
        wait_seconds = self.chain.seconds_to_wait() if self.goes_on else 0.0
        if wait_seconds > 0:
            time.sleep(min(wait_seconds, self.timeout_seconds))
        goes_on = self.goes_on and wait_seconds <= 0
        is_known = goes_on or self.has_looked
        self._entries = self.chain.last_entries() if is_known else self.chain.entries()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._entries = None

    @property
    def entries(self) -> Entries:
        """The chain up to the entry that the next one of this turn follows."""
        assert self._entries is not None, "the turn has not begun"
        return self._entries

    def newest(self) -> Manifest:
        """Return the newest version in those entries."""
        return self.entries.manifest

    def newest_of(self, table_id: str) -> Manifest:
        """Return the newest version in those entries. Raises ConflictError for another table."""
        newest = self.entries.manifest
        return newest if newest.table_id == table_id else self.chain.newest_of(table_id)

    @property
    def safe_timestamp(self) -> int:
        """The time of the last of those entries."""
        return self.entries.timestamp

    @property
    def log_end(self) -> tuple[int, int]:
        """The position after the last of those entries."""
        return position_after(self.entries.number)

    def move_on(self, entries: Entries | None) -> Entries:
        """Go on after an own entry. Raises LostRaceError where it was not created."""
        if entries is None:
            raise LostRaceError
        self._entries = entries
        return entries

    def advance_safe_timestamp(self, timestamp: int) -> None:
        """Append a record without rows at a time, unless the chain is there."""
        if timestamp > self.entries.timestamp:
            self.move_on(self.chain.append(self.entries, b"", timestamp))

    def announce(self, work: str) -> None:
        """Do nothing: nobody waits for a turn."""

    def renew(self) -> None:
        """Begin again at the newest entry. Raises LockTimeoutError after the timeout."""
        self._lost_count += 1
        if time.monotonic() > self._deadline:
            raise LockTimeoutError(
                f"table {self.chain.name!r}: in {self.timeout_seconds:g} s other writers were"
                f" faster {self._lost_count} times; try again later, or wait longer"
                " (lock_timeout_seconds)"
            )
        took_seconds, self._entries = time.monotonic() - self._begun, self.chain.entries()
        if self.goes_on:
            left = min(self.chain.seconds_to_wait(), self._deadline - time.monotonic())
            if left > 0:
                time.sleep(left)
                self._entries = self.chain.entries()
        elif self._lost_count >= _LOST_BEFORE_ASKING:
            self._ask(took_seconds)
        self._begun = time.monotonic()

    def _ask(self, seconds: float) -> None:
        """Ask those that append rows to wait for twice that time, or twice as long as last time."""
        self._asked_seconds = 2 * max(seconds, self._asked_seconds)
        asked_ms = int(1000 * self._asked_seconds) + 1
        made = None
        while made is None and time.monotonic() < self._deadline:
            before = self.chain.entries()
            made = self.chain.append(before, b"", before.timestamp + 1, asked_ms=asked_ms)
            self._entries = made or before

    def check_is_first(self) -> None:
        """Look for a newer entry. Raises LostRaceError where there is one."""
        if self.chain.entries().number > self.entries.number:
            raise LostRaceError

    def close(self) -> None:
        """Do nothing: nothing is kept."""


@dataclass
class ChainLog:
    """The log of the table whose entries are in `chain`."""

    chain: EntryChain
    clock: Clock

    def create(self, safe_timestamp: int = 0) -> None:
        """Do nothing: the first version has the time."""

    def turn(
        self,
        timeout_seconds: float,
        *,
        is_shared: bool = False,
        stays_open: bool = False,
        has_looked: bool = False,
    ) -> ChainTurn:
        """Return a turn. One that `stays_open` begins without a look for newer entries.

        So does one whose caller `has_looked`, and it does not wait for others first.
        """
        return ChainTurn(self.chain, timeout_seconds, goes_on=stays_open, has_looked=has_looked)

    # -- reading

    def look(self, until: int) -> LogState:
        """Return the newest version, and the place and time of the newest entry."""
        found = self.chain.entries_at(until)
        end = position_after(found.number)
        return LogState(found.manifest, found.timestamp, end, is_of_this_boot=True, identity=None)

    def is_longer(self, end: LogPosition) -> bool:
        """Return False: an entry is there as a whole or not at all."""
        return False

    def is_rolled_back(self, held: LogPosition) -> bool:
        """Return False: another thread has read newer entries."""
        return False

    @property
    def is_writable(self) -> bool:
        """Return True: a refusal is an error of the write itself."""
        return True

    def read(self, table_id: str, start: LogPosition, end: LogPosition | None) -> LogTail:
        """Return the commits of the records between two positions.

        Raises SupersededError where a newer version has some of them in rowsets.
        """
        found = self.chain.last_entries()
        newest = position_after(found.number)
        stop = newest if end is None else end
        if found.manifest.log_start > start or stop > newest:
            raise SupersededError
        commits: list[LoggedCommit] = []
        for record in found.records:
            if start.segment < record.number <= stop.segment:
                commits += record.decode_commits(str(self.chain.path(record.number)))
        return LogTail(commits, stop)

    # -- in a turn

    def is_settled(self, turn: Turn, memory: TableMemory) -> bool:
        """Whether memory has all entries that the turn follows.

        Where it has more, the turn has lost.
        """
        assert isinstance(turn, ChainTurn)
        self.chain.note(turn.entries)  # the turn may be of another object of this process
        if memory.end > turn.log_end:
            raise LostRaceError
        return memory.end == turn.log_end

    def settle(self, turn: Turn, manifest: Manifest) -> LogPosition:
        """Return the position after the last entry that the turn follows."""
        return LogPosition(*turn.log_end)

    def append(
        self, turn: Turn, memory: TableMemory, commits: Sequence[bytes], timestamp: int
    ) -> LogPosition:
        """Create the next entry with the commits."""
        assert isinstance(turn, ChainTurn)
        made = turn.move_on(self.chain.append(turn.entries, b"".join(commits), timestamp))
        return position_after(made.number)

    def publish(
        self, turn: Turn, fit: Callable[[Manifest], Manifest | None], newest: Manifest
    ) -> Manifest | None:
        """Create the next entry with the version `fit(newest)`."""
        assert isinstance(turn, ChainTurn)
        before = turn.entries
        manifest = fit(before.numbered(newest))
        if manifest is None:
            return None
        assert turn.entries is before, "an own entry came in between"
        return turn.move_on(self.chain.publish(before, manifest)).manifest

    def roll(self, turn: Turn, memory: TableMemory) -> None:
        """Do nothing: each record is removed on its own."""

    def fence(self, turn: Turn) -> None:
        """Append a record without rows: turns that began before it lose."""
        self._append_empty(turn)

    def _append_empty(self, turn: Turn, *, is_end: bool = False) -> None:
        assert isinstance(turn, ChainTurn)
        timestamp = max(self.clock.now(), turn.safe_timestamp + 1)
        turn.move_on(self.chain.append(turn.entries, b"", timestamp, is_end=is_end))

    def end(self, turn: Turn, *, is_first: bool) -> None:
        """Append a record that nobody may follow."""
        while True:
            try:
                self._append_empty(turn, is_end=True)
                return
            except LostRaceError:
                if is_first:
                    raise
                turn.renew()

    def refuse_all(self) -> None:
        """Append the record that nobody may follow, unless it is there."""
        # A table that has an end, or no version, takes no turns.
        ended = suppress(TableNotFoundError, CorruptionError)
        with ended, self.turn(_REFUSE_SECONDS) as turn:
            self.end(turn, is_first=False)

    def resume(self, turn: Turn) -> bool:
        """Append a record after one that nobody may follow."""
        assert isinstance(turn, ChainTurn)
        has_ended = turn.entries.has_ended
        if has_ended:
            self._append_empty(turn)
        return has_ended

    # -- upkeep

    def files_before(self, segment: int) -> list[Listed]:
        """Return none: the entries are removed with the versions."""
        return []

    def has_grown_long(self) -> bool:
        """Whether a flush should fold the records, each of which is a request of a cold reader.

        After one append in sixteen, so that many processes do not begin it at once.
        """
        count = len(self.chain.last_entries().records)
        return count >= RECORDS_MAX and count % _FLUSH_EACH == 0

    @property
    def nbytes(self) -> int:
        """The bytes of the records behind the newest version's rowsets, decoded."""
        return sum(len(record.commits) * 3 // 4 for record in self.chain.last_entries().records)
