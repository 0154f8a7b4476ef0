"""Changes and histories of random tables are those of a dictionary, in every window.

Rows are written in every way there is: through sessions, which leave them in memory; in bulk, in
staged writes that others overtake, by overwriting and truncating; in between memory is flushed and
rowsets are compacted. A few keys are deleted and inserted over and over, so that one key has lives
in several rowsets, or several in one.
"""

import random
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.errors import TimestampError
from kudulite.rowset.rowset_meta import RowSetMeta
from kudulite.table.snapshot import ancient_history_mark
from kudulite.tablet.maintenance_policy import (
    CollectHistory,
    CompactColumns,
    CompactDeltas,
    CompactRowSets,
    MaintenanceOperation,
)
from kudulite.upkeep.compaction import run_operation
from tests.support.oracle.change_model import ChangeModel, Row, difference, version_difference
from tests.support.tables.core_tables import CoreTables, ManualClock, stored, tuples
from tests.support.tiers import tiered

TIMES = ["_commit_version", "_commit_timestamp"]

SEEDS = range(10)
MICROSECONDS_A_DAY = 24 * 3600 * 1_000_000
STEPS = 9
KEY_NAMES = ["k", "s"]
VALUE_NAMES = ["a", "b"]
NAMES = KEY_NAMES + VALUE_NAMES
DEFAULTS = {"a": None, "b": "none"}
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"hash_partitions": [(["k"], 3)]},
    {"range_partitions": {"columns": ["k"], "bounds": [[None, 3], [3, None]]}},
)
SAFE = ("upsert", "insert_ignore", "update_ignore", "delete_ignore", "upsert_ignore")


class ChangingTable:
    """A table and its model, driven by one random generator; every step is one commit."""

    def __init__(self, core: CoreTables, seed: int, clock: ManualClock | None = None) -> None:
        self.random = random.Random(seed)
        self.log = [f"seed {seed}"]
        self.clock = clock
        self.client = core.client() if clock is None else core.client(clock=clock)
        columns = [
            kudulite.column("k", kudulite.int32, nullable=False),
            kudulite.column("s", kudulite.string, nullable=False),
            kudulite.column("a", kudulite.int64),
            kudulite.column("b", kudulite.string, default="none"),
        ]
        self.schema = kudulite.schema(columns, KEY_NAMES)
        self.layout = self.random.choice(LAYOUTS)
        self.table = self.client.create_table("t", self.schema, **self.layout)
        self.keys = [(k, s) for k in range(5) for s in ("", "x")]
        self.model = ChangeModel(DEFAULTS)
        self.model.commit(self.table.current_timestamp(), is_exact=False)

    # -- steps

    def step(self) -> None:
        """One random commit."""
        steps = {
            self.session: 5,
            self.bulk: 3,
            self.mixed: 2,
            self.overtaken: 2,
            self.overwrite: 1,
            self.flush: 3,
            self.compact: 4,
            self.truncate: 0.3,
        }
        if self.clock is not None:
            # Or a commit might have the moment of the one before, which was in another tablet.
            self.clock.microseconds += 1
            steps[self.age] = 4
        chosen = self.random.choices(list(steps), list(steps.values()))[0]
        self.log.append(chosen.__name__)
        chosen()

    def session(self) -> None:
        """Some rows one by one, one flush, not to disk."""
        session = self.client.new_session()
        for operation, key, values in self.some(SAFE):
            row = self.row(key, values)
            session.apply(getattr(self.table, f"new_{operation}")(row))
            self.model.apply(operation, key, values)
        session.flush()
        self.model.commit(self.table.current_timestamp(), is_exact=False)

    def bulk(self) -> None:
        """One operation on several keys."""
        operation = self.random.choice(SAFE)
        names = self.value_names()
        rows = [(key, self.values(names)) for key in self.random.choices(self.keys, k=4)]
        if operation == "delete_ignore":
            names, rows = [], [(key, {}) for key, _ in rows]
        result = getattr(self.table, operation)(self.arrow(rows, names))
        for key, values in rows:
            self.model.apply(operation, key, values)
        self.log.append(f"{operation} {rows}")
        self.model.commit(result.timestamp, is_exact=True)

    def mixed(self) -> None:
        """Several operations in one batch, of one key as well."""
        rows = [(o, key, self.values(VALUE_NAMES)) for o, key, _ in self.some(SAFE)]
        data = self.arrow([(key, values) for _, key, values in rows], VALUE_NAMES)
        data = data.append_column("op", pa.array([operation for operation, _, _ in rows]))
        result = self.table.apply(data, operation_column="op")
        for operation, key, values in rows:
            self.model.apply(operation, key, {} if operation == "delete_ignore" else values)
        self.log.append(f"mixed {rows}")
        self.model.commit(result.timestamp, is_exact=True)

    def overtaken(self) -> None:
        """A staged write that is committed after another: rows of it are inserted in vain."""
        operation = self.random.choice(["upsert", "insert_ignore", "delete_ignore"])
        names = [] if operation == "delete_ignore" else VALUE_NAMES
        keys = self.random.sample(self.keys, 4)
        rows = [(key, self.values(names)) for key in keys]
        present = {key for key in keys if key in self.model.rows}
        write = self.table.new_bulk_write(operation, columns=[*KEY_NAMES, *names])
        part = write.stage([self.arrow(rows, names)])
        self.bulk()
        if self.clock is not None:
            self.clock.microseconds += 1
        result = write.commit([part])
        self.log.append(f"overtaken {operation} {rows}")
        for key, values in rows:
            # What an IGNORE operation ignored when it was staged stays ignored.
            is_ignored = {"insert_ignore": key in present, "delete_ignore": key not in present}
            if not is_ignored.get(operation, False):
                self.model.apply(operation, key, values)
        self.model.commit(result.timestamp, is_exact=True)

    def overwrite(self) -> None:
        """Other rows in the place of all."""
        rows = [(key, self.values(VALUE_NAMES)) for key in self.random.sample(self.keys, 4)]
        result = self.table.overwrite(self.arrow(rows, VALUE_NAMES))
        self.model.clear()
        for key, values in rows:
            self.model.apply("upsert", key, values)
        self.log.append(f"overwrite {rows}")
        self.model.commit(result.timestamp, is_exact=True)

    def truncate(self) -> None:
        """No rows."""
        result = self.table.truncate()
        self.model.clear()
        self.model.commit(result.timestamp, is_exact=True)

    def flush(self) -> None:
        """Memory to disk: no row changes."""
        self.table.flush()
        self.model.commit(self.table.current_timestamp(), is_exact=False)

    def compact(self) -> None:
        """A random compaction of a random tablet: no row changes."""
        store = self.table._store
        entry = self.random.choice(store.newest().tablets)
        metas = [m for m in store.tablet(entry).superblock.rowsets if m.delete_timestamp is None]
        if metas:
            operation = self.operation(metas)
            self.log.append(str(operation))
            run_operation(store, entry.id, operation)
        self.model.commit(self.table.current_timestamp(), is_exact=False)

    def age(self) -> None:
        """Time passes, and what is before the mark is collected."""
        assert self.clock is not None
        self.clock.microseconds += self.random.randint(1, 4 * MICROSECONDS_A_DAY)
        self.bulk()  # the mark is never after the newest commit
        store = self.table._store
        for entry in store.newest().tablets:
            run_operation(store, entry.id, CollectHistory())

    def operation(self, metas: list[RowSetMeta]) -> MaintenanceOperation:
        """Any compaction that these rowsets can have."""
        kind = self.random.choice(["rowsets", "rowsets", "columns", "redo", "undo"])
        if kind == "rowsets":
            chosen = self.random.sample(metas, self.random.randint(1, len(metas)))
            return CompactRowSets(tuple(meta.id for meta in chosen))
        meta = self.random.choice(metas)
        if kind == "columns":
            ids = [self.schema.column(name).id for name in self.value_names()]
            return CompactColumns((meta.id,), tuple(ids))
        files = meta.undo if kind == "undo" else meta.redo
        if not files:
            return CompactRowSets((meta.id,))
        start = self.random.randrange(len(files))
        stop = self.random.randint(start + 1, len(files))
        return CompactDeltas((meta.id,), start, stop, is_undo=kind == "undo")

    def some(self, operations: tuple[str, ...]) -> list[tuple[str, tuple, Row]]:
        found = []
        for key in self.random.choices(self.keys, k=self.random.choice([1, 2, 5])):
            operation = self.random.choice(operations)
            values = {} if operation == "delete_ignore" else self.values(self.value_names())
            found.append((operation, key, values))
        self.log.append(str(found))
        return found

    def value_names(self) -> list[str]:
        return self.random.choice([VALUE_NAMES, VALUE_NAMES, ["a"], ["b"]])

    def values(self, names: list[str]) -> Row:
        some = {"a": [None, 0, 1, 2], "b": [None, "", "x", "none"]}
        return {name: self.random.choice(some[name]) for name in names}

    @staticmethod
    def row(key: tuple, values: Row) -> Row:
        return dict(zip(KEY_NAMES, key, strict=True)) | values

    def arrow(self, rows: list[tuple[tuple, Row]], names: list[str]) -> pa.Table:
        schema = self.table.arrow_schema
        wanted = pa.schema([schema.field(name) for name in [*KEY_NAMES, *names]])
        return pa.Table.from_pylist([self.row(key, values) for key, values in rows], wanted)

    # -- comparing

    def windows(self) -> list[tuple[int, int]]:
        """All pairs of commits, in order, equal ones too."""
        count = len(self.model.commits)
        return [(first, last) for first in range(count) for last in range(first, count)]

    def moment(self, number: int) -> int:
        return self.model.commits[number].timestamp

    def same(self, found: object, expected: object, what: str) -> None:
        if found != expected:
            history = "\n".join(self.log)
            raise AssertionError(f"{history}\n{what}:\nfound    {found}\nexpected {expected}")

    def compare_window(self, first: int, last: int, **options: Any) -> None:
        """The changes of a window are the model's."""
        changes = self.table.changes(self.moment(first), self.moment(last), **options)
        both, expected = options.get("images") == "both", self.model.changes(first, last)
        wrong = difference(changes.to_pylist(), expected, KEY_NAMES, NAMES, both)
        self.same(wrong, None, f"window {first}, {last}")


def table_after_steps(core: CoreTables, seed: int) -> ChangingTable:
    """A table with a random history."""
    changing = ChangingTable(core, seed)
    for _ in range(STEPS):
        changing.step()
    return changing


@tiered("seed", SEEDS)
def test_every_window_tells_each_changed_key_once(core, seed):
    """With its type, its newest moment, and the rows at both ends; also by tokens, also reopened.

    The windows of a history are all pairs of its commits.
    """
    changing = table_after_steps(core, seed)
    for first, last in changing.windows():
        changing.compare_window(first, last, images="both")
    changing.table = core.client().table("t")
    for first, last in changing.random.sample(changing.windows(), 8):
        changing.compare_window(first, last)
        moments = changing.moment(first), changing.moment(last)
        tokens = changing.table.change_tokens(*moments, images="both", split_size_bytes=1)
        found = [row for token in tokens for batch in token.open() for row in batch.to_pylist()]
        wrong = difference(found, changing.model.changes(first, last), KEY_NAMES, NAMES, both=True)
        changing.same(wrong, None, f"tokens of window {first}, {last}")


@tiered("seed", SEEDS)
def test_replayed_changes_make_the_source(core, seed):
    """Window after window into an empty table, and the whole history at once."""
    changing = table_after_steps(core, seed)
    copy = changing.client.create_table("copy", changing.schema, hash_partitions=[(["s"], 2)])
    number, last = 0, len(changing.model.commits) - 1
    while number < last:
        upper = min(last, number + changing.random.choice([1, 2, 3]))
        replay(changing, copy, number, upper)
        expected = stored(changing.table, changing.moment(upper))
        changing.same(stored(copy), expected, f"replayed {number} to {upper}")
        number = upper
    at_once = changing.client.create_table("at_once", changing.schema)
    replay(changing, at_once, 0, last)
    changing.same(stored(at_once), stored(changing.table), "replayed at once")


def replay(changing: ChangingTable, copy: kudulite.Table, first: int, last: int) -> None:
    """Apply the changes of a window; any row that does not fit fails."""
    images = changing.random.choice(["after", "both"])  # a preimage is nothing to write
    moments = changing.moment(first), changing.moment(last)
    changes = changing.table.changes(*moments, images=images).to_arrow()
    copy.apply(changes.drop_columns(TIMES), operation_column="_change_type")


@tiered("seed", SEEDS)
def test_changes_are_filtered_by_keys_and_by_the_rows_at_both_ends(core, seed):
    """A row that enters or leaves a filter is told; columns come in the order asked for."""
    changing = table_after_steps(core, seed)
    table = changing.table
    filters = (
        ([table["a"] >= 1], lambda row: row["a"] in (1, 2)),
        ([table["b"].is_null()], lambda row: row["b"] is None),
        ([table["b"] == "x", table["a"] <= 1], lambda row: row["b"] == "x" and row["a"] in (0, 1)),
    )
    for first, last in changing.random.sample(changing.windows(), 20):
        where, accepts = changing.random.choice(filters)
        names = changing.random.choice([["b", "k", "s"], ["s", "k"], NAMES])
        found = table.changes(
            changing.moment(first), changing.moment(last), names, where, images="both"
        )
        assert found.schema.names[: len(names)] == names
        expected = changing.model.changes(first, last, accepts)
        wrong = difference(found.to_pylist(), expected, KEY_NAMES, names, both=True)
        changing.same(wrong, None, f"{where} in window {first}, {last}")
        key = changing.random.choice(changing.keys)
        window = changing.moment(first), changing.moment(last)
        own = table.changes(*window, where=[table["k"] == key[0], table["s"] >= key[1]])
        wanted = {
            k: change
            for k, change in changing.model.changes(first, last).items()
            if k[0] == key[0] and k[1] >= key[1]
        }
        wrong = difference(own.to_pylist(), wanted, KEY_NAMES, NAMES)
        changing.same(wrong, None, f"{key} in window {first}, {last}")


@tiered("seed", SEEDS)
def test_the_history_of_a_row_has_all_its_versions(core, seed):
    """One for each commit that touched it, in memory, on disk, and as another client sees it."""
    changing = table_after_steps(core, seed)
    for table in (changing.table, core.client().table("t")):
        for key in changing.keys:
            found = table.history(key).to_pylist()
            expected = changing.model.versions(key)
            changing.same(len(found), len(expected), f"versions of {key}: {found} {expected}")
            for row, change in zip(found, expected, strict=True):
                wrong = version_difference(row, key, change, KEY_NAMES, NAMES)
                changing.same(wrong, None, f"history of {key}")
        table.flush()


@tiered("seed", SEEDS, quick=(3,))  # the first whose mark has passed some commits
def test_changes_and_histories_reach_back_to_the_mark(core, seed):
    """Collected history is not missed: windows from the mark on, and no others, can be read."""
    changing = ChangingTable(core, seed, ManualClock())
    for _ in range(2 * STEPS):
        changing.step()
    store = changing.table._store
    mark = ancient_history_mark(store, store.newest())
    commits = changing.model.commits
    for number in range(len(commits)):
        if changing.moment(number) < mark:
            with pytest.raises(TimestampError, match="ancient history mark"):
                changing.table.changes(changing.moment(number))
    first = max((n for n in range(len(commits)) if changing.moment(n) <= mark), default=0)
    mark = max(mark, changing.moment(0))
    known = [n for n in range(first, len(commits)) if changing.moment(n) >= mark]
    for number, start in enumerate(known):
        for last in known[number:]:
            changing.compare_window(start, last, images="both")
    if first + 1 < len(commits) and not commits[first + 1].is_exact:
        return  # whether that commit was before the mark is not known here
    for last in range(first + 1, len(commits)):
        changes = changing.table.changes(mark, changing.moment(last), images="both").to_pylist()
        expected = changing.model.changes(first, last)
        wrong = difference(changes, expected, KEY_NAMES, NAMES, both=True)
        changing.same(wrong, None, f"window from the mark to {last}")
    for key in changing.keys:
        found = changing.table.history(key).to_pylist()
        held = commits[first].rows.get(key)
        if held is not None:
            oldest = found.pop(0)
            changing.same([oldest[name] for name in VALUE_NAMES], list(held.values()), str(key))
            changing.same((oldest["_commit_version"] or 0) <= mark, True, f"moment of {key}")
        expected = changing.model.versions(key, first)
        changing.same(len(found), len(expected), f"versions of {key}: {found} {expected}")
        for row, change in zip(found, expected, strict=True):
            wrong = version_difference(row, key, change, KEY_NAMES, NAMES)
            changing.same(wrong, None, f"history of {key}")


def test_a_projection_without_columns_tells_types_and_moments(core):
    """Also with the preimages, which are then rows of the columns of changes alone."""
    changing = table_after_steps(core, 1)
    last = len(changing.model.commits) - 1
    expected = changing.model.changes(0, last)
    found = changing.table.changes(changing.moment(0), columns=[], images="both")
    kinds = [change.kind for change in expected.values()]
    kinds += ["update_preimage"] * kinds.count("update_postimage")
    assert found.count() == len(kinds)
    assert sorted(row[0] for row in tuples(found.to_arrow())) == sorted(kinds)
