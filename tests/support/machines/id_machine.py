"""Random writes to a table whose key is not unique, and the dictionary that it must equal.

Looks compare earlier moments, the changes between them and whole histories of rows, too.

The dictionary has rows by (k, id). It cannot foresee an id, because writes that fail leave gaps. It
learns each from the next scan, and demands as many new rows as were inserted, with their values,
and ids that are above every id that their tablet ever showed and rise in the order of the rows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import kudulite
from kudulite.backups.backup_job import backup
from kudulite.backups.restore_job import restore
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import RowError
from tests.support.machines.step_pairs import part_of_circuit
from tests.support.tables.core_tables import environment

ID = kudulite.Schema.get_auto_incrementing_column_name()
KEY_COUNT = 6
RowKey = tuple[int, int]
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "hashed": {"hash_partitions": [(["k"], 3)]},
    "ranges": {"range_partitions": {"columns": ["k"], "bounds": [[None, 3], [3, None]]}},
}
STEPS = (
    *("session", "insert", "mixed", "staged", "aborted", "refused", "upsert", "delete"),
    *("overwrite", "restore", "flush", "compact", "maintain", "reopen", "alter", "backup", "look"),
)
PARTS, ROUNDS = 5, 2  # of circuits through all pairs of steps, for each layout
SEEDS = ROUNDS * PARTS * len(LAYOUTS)


def create(client: Client, layout: str = "one", name: str = "t") -> Table:
    """The empty table: a key `k` that is not unique, and a value `v`."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int64)]
    return client.create_table(
        name, kudulite.schema(columns, "k", is_unique=False), **LAYOUTS[layout]
    )


def rows_of(table: Table, at: Any = None, *, is_tokens: bool = False) -> dict[RowKey, int]:
    """All rows at a moment as {(k, id): v}, by a scan or by its tokens in other orders.

    Raises AssertionError for a key that is there twice.
    """
    columns = ["k", ID, "v"]
    if is_tokens:
        tokens = table.scan_tokens(columns, at=at, split_size_bytes=1)
        batches = [batch for token in reversed(tokens) for batch in token.open()]
        rows = [row for batch in batches for row in batch.to_pylist()]
    else:
        rows = table.scan(columns, at=at).to_arrow().to_pylist()
    pairs = [((row["k"], row[ID]), row["v"]) for row in rows]
    assert len(dict(pairs)) == len(pairs), f"a key twice: {sorted(pairs)}"
    return dict(pairs)


class IdModel:
    """The dictionary of one table, and what each of its tablets has shown."""

    def __init__(self, table: Table) -> None:
        self.rows: dict[RowKey, int] = {}
        self.highest: Counter[int] = Counter()
        keys = [{"k": k} for k in range(KEY_COUNT)]
        self.tablet_of = dict(enumerate(table.tablet_index(keys).to_pylist()))

    def learn(self, table: Table, inserted: Sequence[tuple[int, int]]) -> None:
        """Compare, after the (k, v) of `inserted` were added in that order."""
        found = rows_of(table)
        new = {key: v for key, v in found.items() if key not in self.rows}
        assert {key: v for key, v in found.items() if key in self.rows} == self.rows
        assert Counter((k, v) for (k, _), v in new.items()) == Counter(inserted)
        place = {v: at for at, (_, v) in enumerate(inserted)}  # values are never used twice
        for tablet in set(self.tablet_of.values()):
            own = [(place[v], key[1]) for key, v in new.items() if self.tablet_of[key[0]] == tablet]
            ids = [number for _, number in sorted(own)]
            assert ids == sorted(set(ids)), f"ids {ids} do not rise"
            assert not ids or ids[0] > self.highest[tablet], f"{ids} after {self.highest[tablet]}"
            if ids:
                self.highest[tablet] = ids[-1]
        self.rows |= new

    def give(self, key: tuple[int, int], v: int) -> None:
        """A row got an id from its writer."""
        self.rows[key] = v
        tablet = self.tablet_of[key[0]]
        self.highest[tablet] = max(self.highest[tablet], key[1])


def steps_of(seed: int) -> list[str]:
    """Steps of which each one comes after each one, in each layout, in all seeds together."""
    layout, part = seed % len(LAYOUTS), seed // len(LAYOUTS)
    round_number, part = divmod(part, PARTS)
    return part_of_circuit(STEPS, round_number * len(LAYOUTS) + layout, part, PARTS)


class IdMachine:
    """A table, its model, and random rows; `log` is what was done."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)
        layout = sorted(LAYOUTS)[seed % len(LAYOUTS)]
        self.log = [f"seed {seed}, {layout}"]
        self.place, self.copies = root / "db", 0
        self.table = create(self.client(), layout)
        self.model = IdModel(self.table)
        self.next_value = 0
        self.moments = [(self.table.current_timestamp(), dict(self.model.rows))]

    def client(self) -> Client:
        """A client that has seen nothing; half of them write small batches through the log."""
        return Client(self.place, environment(small_write_rows_max=self.random.choice([0, 100])))

    def run(self, steps: Sequence[str]) -> None:
        """Take steps, and compare after each."""
        for name in steps:
            self.log.append(name)
            try:
                inserted = getattr(self, f"_{name}")()
                self.model.learn(self.table, inserted or ())
            except Exception as error:
                error.add_note("\n".join(self.log))
                raise
            if self.random.random() < 0.2:
                self.moments.append((self.table.current_timestamp(), dict(self.model.rows)))

    # -- rows

    def new_rows(self, most: int = 12) -> list[dict[str, int]]:
        """Rows without ids, whose values nobody had before."""
        rows = []
        for _ in range(self.random.randint(1, most)):
            self.next_value += 1
            rows.append({"k": self.random.randrange(KEY_COUNT), "v": self.next_value})
        return rows

    def old_key(self) -> RowKey | None:
        """The key of one of the rows."""
        return self.random.choice(sorted(self.model.rows)) if self.model.rows else None

    def _changes(self) -> list[tuple[str, dict[str, int]]]:
        """Inserts, and changes of rows that are there, which the model has from now on."""
        changes = [("insert", row) for row in self.new_rows()]
        for key in {self.old_key() for _ in range(self.random.randint(0, 4))} - {None}:
            self.next_value += 1
            row = {"k": key[0], ID: key[1], "v": self.next_value}
            name = self.random.choice(["update", "upsert", "update_ignore", "delete"])
            changes.insert(self.random.randint(0, len(changes)), (name, row))
            if name == "delete":
                del self.model.rows[key]
            else:
                self.model.rows[key] = self.next_value
        if self.random.random() < 0.2:
            k = self.random.randrange(KEY_COUNT)
            key = (k, self.model.highest[self.model.tablet_of[k]] + 40)
            self.next_value += 1
            changes.append(("upsert", {"k": key[0], ID: key[1], "v": self.next_value}))
            self.model.give(key, self.next_value)
            # The inserts before it have smaller ids: they must not be compared with it.
            changes = [change for change in changes if change[0] != "insert"]
        return changes

    # -- steps: each returns the (k, v) that it inserted, in their order

    def _session(self) -> list[tuple[int, int]]:
        """Rows through a session."""
        session, changes = kudulite.Session(), self._changes()
        for name, row in changes:
            given = {n: v for n, v in row.items() if name != "delete" or n != "v"}
            session.apply(getattr(self.table, f"new_{name}")(given))
        session.flush()
        return inserted_by(changes)

    def _insert(self) -> list[tuple[int, int]]:
        """A batch of new rows, many now and then."""
        rows = self.new_rows(self.random.choice([5, 50, 500]))
        write = self.random.choice([self.table.insert, self.table.insert_ignore])
        write(rows)
        return [(row["k"], row["v"]) for row in rows]

    def _mixed(self) -> list[tuple[int, int]]:
        """A mixed batch."""
        changes = self._changes()
        self.table.apply(mixed(changes))
        return inserted_by(changes)

    def _tasks(self) -> tuple[kudulite.BulkWrite, list, list[tuple[int, int]]]:
        parts = [self.new_rows() for _ in range(self.random.randint(1, 3))]
        write = self.table.new_bulk_write("insert", columns=["k", "v"])
        staged = []
        if self.random.random() < 0.5:  # rows in the log, which the write did not flush
            self.model.learn(self.table, self._session())
        for number, rows in enumerate(parts):
            for _ in range(self.random.choice([1, 1, 2])):  # a task may be run again
                task = write.stage([arrow(rows)], number)
            staged.append(task)
        return write, staged, [(row["k"], row["v"]) for rows in parts for row in rows]

    def _staged(self) -> list[tuple[int, int]]:
        """Tasks of a bulk write, some of them twice, beside other writes."""
        write, staged, inserted = self._tasks()
        between = self.new_rows()
        self.table.insert(between)
        self.model.learn(self.table, [(row["k"], row["v"]) for row in between])
        if self.random.random() < 0.5:
            self.table.flush()
        before = dict(self.model.highest)
        write.commit(staged)
        # They got their ids before the rows in between.
        found = rows_of(self.table)
        new = {key: v for key, v in found.items() if key not in self.model.rows}
        assert Counter((k, v) for (k, _), v in new.items()) == Counter(inserted)
        self.model.rows |= new
        for (k, number), _ in new.items():
            tablet = self.model.tablet_of[k]
            self.model.highest[tablet] = max(self.model.highest[tablet], number)
        assert all(self.model.highest[tablet] >= last for tablet, last in before.items())
        return []

    def _aborted(self) -> None:
        """A bulk write that is given up."""
        write, _, _ = self._tasks()
        write.abort()

    def _refused(self) -> None:
        """A batch with a row that the table cannot take: all of it is refused."""
        absent = {"k": 0, ID: 1 << 60, "v": 0}
        changes = [("insert", row) for row in self.new_rows()] + [("update", absent)]
        try:
            self.table.apply(mixed(changes))
        except RowError:
            return
        raise AssertionError("an update of no row was accepted")

    def _upsert(self) -> None:
        """An id that the writer gives, above all others of the tablet or among them."""
        key = self.old_key()
        if key is None or self.random.random() < 0.5:
            k = self.random.randrange(KEY_COUNT)
            key = (k, self.model.highest[self.model.tablet_of[k]] + self.random.randint(1, 1000))
        self.next_value += 1
        self.table.upsert([{"k": key[0], ID: key[1], "v": self.next_value}])
        self.model.give(key, self.next_value)

    def _delete(self) -> None:
        """Half of the rows, or all with one key, or the one with the highest id."""
        choice = self.random.random()
        k = self.random.randrange(KEY_COUNT)
        if choice < 0.4:
            self.table.delete(where=self.table["k"] == k)
            gone = {key for key in self.model.rows if key[0] == k}
        elif choice < 0.8 and self.model.rows:
            gone = {max(self.model.rows, key=lambda key: key[1])}
            self.table.delete([{"k": key[0], ID: key[1]} for key in gone])
        else:
            self.table.truncate()
            gone = set(self.model.rows)
        for key in gone:
            del self.model.rows[key]

    def _overwrite(self) -> list[tuple[int, int]]:
        """New rows in the place of all, or the same rows with their ids."""
        if self.random.random() < 0.5 and self.model.rows:
            self.next_value += 1
            rows = [{"k": k, ID: i, "v": self.next_value} for k, i in self.model.rows]
            self.table.overwrite(rows)
            self.model.rows = dict.fromkeys(self.model.rows, self.next_value)
            return []
        rows = self.new_rows()
        self.table.overwrite(rows)
        self.model.rows = {}
        return [(row["k"], row["v"]) for row in rows]

    def _restore(self) -> None:
        """The rows of an earlier moment, with their ids; new ids still are above all."""
        moment, rows = self.random.choice(self.moments)
        self.table.restore(moment)
        self.model.rows = dict(rows)

    def _look(self) -> None:
        """Two earlier moments, the changes between them, and all versions of a row."""
        (start, before), (end, after) = sorted(
            self.random.choices(self.moments, k=2), key=lambda each: each[0]
        )
        assert rows_of(self.table, start) == before
        assert rows_of(self.table, end, is_tokens=True) == after
        found = {}
        for row in self.table.changes(start, end).to_arrow().to_pylist():
            key = row["k"], row[ID]
            assert key not in found, f"{key} twice in the changes"
            found[key] = row["_change_type"], row["v"]
        # A row that got its value of before again is an update, too.
        same = {key for key, v in before.items() if after.get(key) == v}
        assert all(found.pop(key)[0] == "update_postimage" for key in same & found.keys())
        expected = {key: ("delete", v) for key, v in before.items() if key not in after}
        for key in after.keys() - same:
            expected[key] = ("update_postimage" if key in before else "insert", after[key])
        assert found == expected
        keys = sorted(set().union(*(rows for _, rows in self.moments)))
        if keys:
            self._compare_history(self.random.choice(keys))

    def _compare_history(self, key: RowKey) -> None:
        """The newest version at each moment is the row of then."""
        versions = self.table.history(key).to_pylist()
        for moment, rows in self.moments:
            shown = [row for row in versions if row["_commit_version"] <= moment]
            is_there = shown and shown[-1]["_change_type"] != "delete"
            assert (shown[-1]["v"] if is_there else None) == rows.get(key)

    def _flush(self) -> None:
        self.table.flush()

    def _compact(self) -> None:
        self.table.compact()

    def _maintain(self) -> None:
        self.table.maintain(0)

    def _reopen(self) -> None:
        """Go on with a client that sees only the disk."""
        self.table = self.client().table(self.table.name)

    def _alter(self) -> None:
        """Another retention: the logs are flushed under all locks."""
        client = self.client()
        self.table = client.new_table_alterer(self.table).set_history_retention(700_000).alter()

    def _backup(self) -> None:
        """Go on with the table that is restored from a backup."""
        self.copies += 1
        backup(self.table, self.root / f"set-{self.copies}")
        if self.model.rows and self.random.random() < 0.7:
            self._delete()
            backup(self.table, self.root / f"set-{self.copies}", full=False)
        name = f"t{self.copies}"
        restore(self.root / f"set-{self.copies}", self.place / name)
        self.table = self.client().table(name)
        self.moments = [(self.table.current_timestamp(), dict(self.model.rows))]


def inserted_by(changes: Sequence[tuple[str, dict[str, int]]]) -> list[tuple[int, int]]:
    """The (k, v) of the inserts among changes."""
    return [(row["k"], row["v"]) for name, row in changes if name == "insert"]


def mixed(changes: Sequence[tuple[str, dict[str, int]]]) -> list[dict[str, Any]]:
    """A batch with an operation in each row."""
    return [{"op": name, ID: None, **row} for name, row in changes]


def arrow(rows: Sequence[dict[str, int]]) -> pa.RecordBatch:
    """Rows without ids as Arrow."""
    schema = pa.schema([("k", pa.int32()), ("v", pa.int64())])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)
