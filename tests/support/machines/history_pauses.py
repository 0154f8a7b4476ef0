"""Steps that stand still, and the bulk writes that wait for their commit.

While a step stands still, before or after a version's file is created, before a file of a rowset is
made, or when it is durable, another process reads the present in every way, which must be that from
before the step or that after it, as a whole. Then it writes rows of keys that the step does not
write, in one commit, flushes what it can, purges one of these keys, and removes all superseded
versions and files without grace. It waits for no lock, so it changes nothing while the step has it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, LockTimeoutError, RowError
from kudulite.reads.lookup import KeyLookup
from kudulite.table.environment import Environment
from kudulite.table.memory_flush import flush_table
from kudulite.table.table_store import TableStore
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.upkeep.purge import _purge_tablet
from tests.support.doubles.pausing_storage import PausingStorage
from tests.support.machines.history_setup import COLUMN_NAMES, HistoryState, by_key
from tests.support.oracle.table_model import Key, Row, Shown
from tests.support.tables.core_tables import environment, tuples

Rows = list[tuple[str, Row]]
Step = tuple


@dataclass
class StagedWrite:
    """A bulk write that waits for its commit; `rows` are those that it has to apply then.

    `planned` is what it was staged for. A task of few rows hands them over. If all rows are `few`,
    they are judged at the commit; else `refused` is the error of a task that the commit stages.
    """

    write: kudulite.BulkWrite
    parts: list[Any]
    planned: tuple
    is_overwrite: bool
    rows: Rows = field(default_factory=list)
    few: Rows | None = field(default_factory=list)
    refused: RowError | None = None


@dataclass(frozen=True)
class WrittenRows:
    """Rows that another process wrote in one commit, as the model has them."""

    rows: list[Row]
    timestamp: int


class PauseSteps(HistoryState):
    """Steps that stand still while another process goes on."""

    counted: Counter[str]
    other: Environment | None = None

    def run(self, steps: Sequence) -> None:
        """Take steps; the machine's."""
        raise NotImplementedError

    def forget_purged(self, keys: set[Key]) -> None:
        """Let the model forget keys; the machine's."""
        raise NotImplementedError

    def _paused(
        self,
        client: int,
        step: Step,
        gap: str,
        numbers: Sequence[int],
        purged: int | None = None,
    ) -> None:
        """A step; it stands still in each `gap`, one of those of PausingStorage."""
        store = self.tables[client]._store
        environment = store.environment
        if step[0] == "commit" and isinstance(staged := self.slots.get(step[1]), StagedWrite):
            environment = staged.write._store.environment
        storage = environment.storage
        assert isinstance(storage, PausingStorage)
        own = self._written_by(step)
        free = [number for number in numbers if number not in own]
        erased = None if purged in own else purged
        done: list[WrittenRows | Key] = []
        reads: list[tuple[str, Shown]] = []
        before = self.model.at(None)

        def act() -> None:
            if not reads:  # what is written then comes before the end of the step
                reads.extend(self._reads(store.folder))
            done.extend(self._others(store.folder, free, erased))

        storage.pause_at(gap, act)
        try:
            self.run([step])
        finally:
            storage.pause_at(gap, None)
        for how, found in reads:
            self.counted["reads in a pause"] += 1
            after = self.model.at(None)
            is_part = step[0] == "purge" and after.items() <= found.items() <= before.items()
            if found not in (before, after) and not is_part:  # a purge publishes each tablet
                raise AssertionError(
                    f"{how} in gap {gap!r}:\nfound  {found}\nbefore {before}\nafter  {after}"
                )
        self.counted["pauses"] += storage.pause_count
        storage.pause_count = 0
        for each in done:
            if isinstance(each, WrittenRows):
                self.counted["writes in a pause"] += 1
                self.model.write_each([("upsert", row) for row in each.rows])
                self.model.commit(lambda key, written=each: written.timestamp)
            else:
                self.counted["purges in a pause"] += 1
                self.forget_purged({each})

    def _written_by(self, step: Step) -> set[int]:
        """The keys that a step may write; the others have the same outcome before or after it."""
        name, *arguments = step
        if name == "batch":
            return {given[0] for given in arguments[2]}
        if name == "mixed":
            return {given[1] for given in arguments[1]}
        if name == "purge":
            return set(arguments[1])
        if name == "overwrite":
            return set(range(self.setup.key_count))
        if name == "commit":
            staged = self.slots.get(arguments[0])
            if not isinstance(staged, StagedWrite) or staged.is_overwrite:
                return set(range(self.setup.key_count))
            rows = staged.rows
            keys = {tuple(row[name] for name in self.setup.key_names) for _, row in rows}
            return {at for at, key in enumerate(self.keys) if key in keys}
        return set()

    def _other(self, folder: Path) -> Table:
        """The table of another process, which waits for no lock."""
        if self.other is None:
            self.other = environment(clock=self.clock, lock_timeout_seconds=0.0)
        return Table(TableStore(folder, self.other))

    def _reads(self, folder: Path) -> list[tuple[str, Shown]]:
        """Read the present in some ways, by a process that knows the table and by a fresh one."""
        fresh = Table(TableStore(folder, environment(clock=self.clock, lock_timeout_seconds=0.0)))
        found: list[tuple[str, Shown]] = []
        for who, table in (("known", self._other(folder)), ("fresh", fresh)):
            scan, count = table.scan(), len(self.setup.key_names)
            rows = tuples(scan.to_arrow())
            found.append((f"{who}: scan", by_key(rows, count)))
            names = self.setup.key_names
            keys = [dict(zip(names, key, strict=True)) for key in self.keys]
            found.append((f"{who}: get_many", by_key(tuples(table.get_many(keys)), count)))
            tokens = table.scan_tokens(split_size_bytes=1)
            listed = [row for token in tokens for batch in token.open() for row in tuples(batch)]
            found.append((f"{who}: tokens", by_key(listed, count)))
            self.same(scan.count(), len(rows), f"{who}: count")
        return found

    def _others(
        self, folder: Path, numbers: Sequence[int], purged: int | None
    ) -> list[WrittenRows | Key]:
        """Write rows, flush, purge and remove as another process; return rows and purged keys."""
        table = self._other(folder)
        store = table._store
        assert self.other is not None
        done: list[WrittenRows | Key] = []
        session = Client(folder.parent, self.other).new_session()
        made = {}
        for number in numbers:
            if self.tablet_of[self.setup.key(number)] is None:
                continue
            named, numbered = self.row("upsert", number, {COLUMN_NAMES[0]: number})
            operation = table.new_upsert(named)
            session.apply(operation)
            made[id(operation)] = operation, numbered
        with suppress(KuduliteError):
            session.flush()
        for error in session.get_pending_errors()[0]:  # of a row, or of all where there is no lock
            del made[id(error.operation)]
        if made:
            rows = [numbered for _, numbered in made.values()]
            done.append(WrittenRows(rows, session.last_timestamp))
        with suppress(LockTimeoutError):
            flush_table(store)
        if purged is not None:
            row = dict(zip(self.setup.key_names, self.setup.key(purged), strict=True))
            for tablet_id, keys in KeyLookup(store).keys_by_tablet([row]).items():
                with suppress(LockTimeoutError):
                    _purge_tablet(store, tablet_id, keys)
                    done.append(self.setup.key(purged))
        with suppress(LockTimeoutError):
            collect_garbage(store, grace_seconds=0.0)
        return done
