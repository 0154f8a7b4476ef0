"""Steps that stand still, and the bulk writes that wait for their commit.

While a step stands still, before or after a version's file is created, before a file of a rowset is
made, or when it is durable, another process writes rows of keys that the step does not write,
flushes what it can, purges one of these keys, and removes all superseded versions and files without
grace. It waits for no lock, so it changes the tablets that the step does not hold.
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
from kudulite.client.lookup import KeyLookup
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, LockTimeoutError
from kudulite.table.environment import Environment
from kudulite.table.memory_flush import flush_tablet
from kudulite.table.table_store import TableStore
from kudulite.upkeep.garbage_collection import collect_garbage
from kudulite.upkeep.purge import _purge_tablet
from tests.support.doubles.pausing_file_system import PausingFileSystem
from tests.support.machines.history_setup import COLUMN_NAMES, HistoryState
from tests.support.oracle.table_model import Key, Row
from tests.support.tables.core_tables import environment

Rows = list[tuple[str, Row]]
Step = tuple


@dataclass
class StagedWrite:
    """A bulk write that waits for its commit; `rows` are those that it has to apply then.

    `planned` is what it was staged for.
    """

    write: kudulite.BulkWrite
    parts: list[Any]
    planned: tuple
    is_overwrite: bool
    rows: Rows = field(default_factory=list)


@dataclass(frozen=True)
class WrittenRow:
    """A row that another process wrote, as the model has it."""

    row: Row
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
        """A step; it stands still in each `gap`, one of those of PausingFileSystem."""
        store = self.tables[client]._store
        environment = store.environment
        if step[0] == "commit" and isinstance(staged := self.slots.get(step[1]), StagedWrite):
            environment = staged.write._store.environment
        file_system = environment.file_system
        assert isinstance(file_system, PausingFileSystem)
        own = self._written_by(step)
        free = [number for number in numbers if number not in own]
        erased = None if purged in own else purged
        done: list[WrittenRow | Key] = []
        file_system.pause_at(gap, lambda: done.extend(self._others(store.folder, free, erased)))
        try:
            self.run([step])
        finally:
            file_system.pause_at(gap, None)
        self.counted["pauses"] += file_system.pause_count
        file_system.pause_count = 0
        for each in done:
            if isinstance(each, WrittenRow):
                self.counted["writes in a pause"] += 1
                self.model.write_each([("upsert", each.row)])
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

    def _others(
        self, folder: Path, numbers: Sequence[int], purged: int | None
    ) -> list[WrittenRow | Key]:
        """Write rows, flush, purge and remove as another process; return rows and purged keys."""
        if self.other is None:
            self.other = environment(clock=self.clock, lock_timeout_seconds=0.0)
        store = TableStore(folder, self.other)
        table = Table(store)
        done: list[WrittenRow | Key] = []
        session = Client(folder.parent, self.other).new_session()
        for number in numbers:
            key = self.setup.key(number)
            tablet = self.tablet_of[key]
            if tablet is None:
                continue
            named, numbered = self.row("upsert", number, {COLUMN_NAMES[0]: number})
            with suppress(KuduliteError):
                session.apply(table.new_upsert(named))
                session.flush()
                done.append(WrittenRow(numbered, store.safe_timestamp(tablet)))
            session.get_pending_errors()
        for entry in store.newest().tablets:
            with suppress(LockTimeoutError):
                flush_tablet(store, entry.id)
        if purged is not None:
            row = dict(zip(self.setup.key_names, self.setup.key(purged), strict=True))
            for tablet_id, keys in KeyLookup(store).keys_by_tablet([row]).items():
                with suppress(LockTimeoutError):
                    _purge_tablet(store, tablet_id, keys)
                    done.append(self.setup.key(purged))
        with suppress(LockTimeoutError):
            collect_garbage(store, grace_seconds=0.0)
        return done
