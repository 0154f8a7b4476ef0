"""Small batches of threads that wait for the same table: commits of their own, one append."""

import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import kudulite
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, RowError, StorageError
from kudulite.table.table_store import TableStore
from kudulite.writes import batch_commit, log_commit
from tests.support.tables.core_tables import CoreTables
from tests.support.tables.row_writes import MIDDLE, new_table, store_of
from tests.support.tiers import tiered

LIMIT = 20


def table_of(core: CoreTables, tablets: int = 2) -> Table:
    return new_table(core.client("small", small_write_rows_max=LIMIT), tablets)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_memory_that_is_given_up_meanwhile_loses_no_row(core: CoreTables, monkeypatch, at: int):
    """A reader that sees a newer version gives up memory, between two batches of one append.

    Batches before and after it are on two memories then. Readers of both see all rows, and a flush
    writes them.
    """
    table = table_of(core, tablets=1)
    table.insert([{"k": k, "v": 0} for k in range(6)])
    table.flush()
    table.update([{"k": 5, "v": 1}])
    real, calls = batch_commit.recover, []

    def recover(store: TableStore, turn: Any) -> Any:
        calls.append(turn)
        if len(calls) == at:
            store.environment.memories.pop(store.memory_key, None)
        return real(store, turn)

    monkeypatch.setattr(batch_commit, "recover", recover)
    before = appends(store_of(table))
    updates = [lambda k=k: table.update([{"k": k, "v": 10 + k}]) for k in range(4)]
    results = Together(table, 4).run(updates)
    assert [result.updated for result in results] == [1, 1, 1, 1]
    assert appends(store_of(table)) == before + 1
    expected = {0: 10, 1: 11, 2: 12, 3: 13, 4: 0, 5: 1}
    for reader in (table, core.client("small").table(table.name)):
        assert {k: v for k, (v, _) in content(reader).items()} == expected
        assert [reader.get(k)["v"] for k in range(6)] == list(expected.values())
    table.update([{"k": 0, "v": 20}])
    table.flush()
    assert {k: v for k, (v, _) in content(table).items()} == {**expected, 0: 20}


class Together:
    """Threads that write at once: each waits in the queue until all do."""

    def __init__(self, table: Table, count: int) -> None:
        self.table, self.count = table, count
        self.results: list[Any] = [None] * count

    def run(self, calls: Sequence[Any]) -> list[Any]:
        """The results of the calls, or their errors; they are in the queue in order."""
        store = store_of(self.table)
        queue = store.environment.write_queues.setdefault(store.memory_key, log_commit.WriteQueue())
        threads = []
        with queue.turn:
            for number, call in enumerate(calls):
                threads.append(threading.Thread(target=self._run, args=[number, call]))
                threads[-1].start()
                while len(queue._waiting) <= number:
                    threads[-1].join(0.001)
        for thread in threads:
            thread.join()
        return self.results

    def _run(self, number: int, call: Any) -> None:
        try:
            self.results[number] = call()
        except KuduliteError as error:
            self.results[number] = error


def appends(store: TableStore) -> int:
    return store.metrics.log_writes


def content(table: Table) -> dict[int, tuple[int | None, int]]:
    return {row["k"]: (row["v"], row["w"]) for row in table.scan().to_arrow().to_pylist()}


def test_batches_without_a_common_key_have_one_append(core: CoreTables):
    """Each has its result, its timestamp, and its line in the list of versions."""
    table = table_of(core)
    table.insert([{"k": 0, "v": 0}])
    before = appends(store_of(table))
    calls = [
        lambda: table.upsert([{"k": 1, "v": 1}, {"k": MIDDLE, "v": 1}], message="one"),
        lambda: table.update([{"k": 0, "v": 2}], message="two"),
        lambda: table.insert([{"k": 0, "v": 3}], message="refused"),
        lambda: table.upsert([{"k": 5, "v": 5}], message="three"),
    ]
    one, two, refused, three = Together(table, 4).run(calls)
    assert isinstance(refused, RowError)
    assert (one.inserted, two.updated, three.inserted) == (2, 1, 1)
    assert one.timestamp < two.timestamp < three.timestamp
    assert appends(store_of(table)) == before + 2  # the refused one had to see the update
    assert content(table) == {0: (2, 7), 1: (1, 7), MIDDLE: (1, 7), 5: (5, 7)}
    assert [v.message for v in table.versions()][:3] == ["three", "two", "one"]
    past = table.scan(at=one.timestamp).to_arrow().sort_by("k")
    assert past["v"].to_pylist() == [0, 1, 1]
    fresh = core.client("small").table("t")
    assert content(fresh) == content(table)


def test_batches_of_an_application_see_each_other(core: CoreTables):
    """Two of the same version: one is skipped."""
    table = table_of(core)

    def write(key: int) -> Any:
        return table.upsert([{"k": key}], application_id="a", application_version=1)

    first, second = Together(table, 2).run([lambda: write(1), lambda: write(2)])
    assert (first.skipped, second.skipped) == (False, True)
    assert set(content(table)) == {1}


def test_a_refusal_of_the_disk_is_that_of_all_that_waited(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """None of them is written, and all may be written again."""
    table = table_of(core)
    table.insert([{"k": 0}])
    real = log_commit.LogCommit._append

    def refuse(*_: object) -> None:
        raise StorageError(28, "no space")

    monkeypatch.setattr(log_commit.LogCommit, "_append", refuse)
    calls = [lambda n=n: table.upsert([{"k": n, "v": n}]) for n in (1, 2)]
    found = Together(table, 2).run(calls)
    assert [type(error) for error in found] == [StorageError] * 2
    monkeypatch.setattr(log_commit.LogCommit, "_append", real)
    assert set(content(table)) == {0}
    assert [result.inserted for result in Together(table, 2).run(calls)] == [1, 1]
    assert set(content(table)) == {0, 1, 2}


def test_ids_are_used_once(core: CoreTables):
    """Batches whose keys get their ids at the commit do not share an append."""
    client = core.client("small", small_write_rows_max=LIMIT)
    columns = [kudulite.column("k", "int32"), kudulite.column("v", "int32")]
    table = client.create_table("n", kudulite.schema(columns, "k", is_unique=False))
    calls = [lambda: table.insert([{"k": 1, "v": 1}, {"k": 1, "v": 2}]) for _ in range(3)]
    assert [result.inserted for result in Together(table, 3).run(calls)] == [2, 2, 2]
    assert sorted(table.scan().to_arrow()["auto_incrementing_id"].to_pylist()) == [*range(1, 7)]


@tiered("seed", range(20))
def test_batches_at_once_equal_those_one_after_the_other(core: CoreTables, seed: int):
    """Any operations, some of common keys, with flushes in between: the model is a dict."""
    table, rng = table_of(core), random.Random(seed)
    model: dict[int, tuple[int | None, int]] = {}
    for _ in range(15):
        calls, wanted = [], []
        for _ in range(rng.randint(1, 5)):
            operation = rng.choice(["upsert", "insert_ignore", "update_ignore", "delete_ignore"])
            keys = rng.sample(range(0, 2 * MIDDLE, 9), rng.randint(1, 4))
            value = rng.randrange(1000)
            rows = [
                {"k": k} if operation == "delete_ignore" else {"k": k, "v": value} for k in keys
            ]
            calls.append(lambda o=operation, rows=rows: getattr(table, o)(rows))
            wanted.append(apply(model, operation, keys, value))
        found = Together(table, len(calls)).run(calls)
        assert [r.inserted + r.updated + r.deleted for r in found] == wanted
        assert content(table) == model
        if rng.random() < 0.2:
            table.flush()
    assert content(core.client("small").table("t")) == model


def apply(model: dict[int, Any], operation: str, keys: Sequence[int], value: int) -> int:
    """Apply a batch to the model; return how many rows it has changed."""
    count = 0
    for key in keys:
        is_there = key in model
        if operation == "upsert" or is_there == (operation != "insert_ignore"):
            count += 1
            if operation == "delete_ignore":
                del model[key]
            else:
                model[key] = (value, 7)
    return count


def test_batches_that_set_different_columns_of_a_row_keep_both(core: CoreTables):
    """Whichever comes first."""
    table = table_of(core)
    table.insert([{"k": 1, "v": 0, "w": 0}])
    calls = [lambda: table.upsert([{"k": 1, "v": 5}]), lambda: table.update([{"k": 1, "w": 6}])]
    Together(table, 2).run(calls)
    assert content(table) == {1: (5, 6)}


def test_a_new_key_of_eight_threads_is_one_row(core: CoreTables):
    """One of them inserts it, the others update it, or are refused."""
    table = table_of(core)
    upserts = [lambda n=n: table.upsert([{"k": 7, "v": n}]) for n in range(8)]
    found = Together(table, 8).run(upserts)
    assert sorted(result.inserted for result in found) == [0] * 7 + [1]
    assert content(table) == {7: (7, 7)}
    inserts = [lambda: table.insert([{"k": 8}]) for _ in range(8)]
    found = Together(table, 8).run(inserts)
    assert [type(each) for each in found[1:]] == [RowError] * 7 and found[0].inserted == 1


def test_a_result_that_was_settled_before_the_disk_refuses_stays(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """A batch of an existing key is refused for that, and one that changes nothing succeeds."""
    table = table_of(core)
    table.insert([{"k": 1}])

    def refuse(*_: object) -> None:
        raise StorageError(28, "no space")

    monkeypatch.setattr(log_commit.LogCommit, "_append", refuse)
    calls = [
        lambda: table.insert([{"k": 1}]),
        lambda: table.insert_ignore([{"k": 1}]),
        lambda: table.upsert([{"k": 2}]),
    ]
    refused, ignored, failed = Together(table, 3).run(calls)
    assert (type(refused), ignored.ignored, type(failed)) == (RowError, 1, StorageError)
