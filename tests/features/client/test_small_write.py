"""Small Arrow batches go through the table's log; apart from that they are like bulk writes."""

import datetime
import os
import pickle
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, KuduliteError, LockTimeoutError, RowError, StorageError
from kudulite.table import memory_flush
from kudulite.tablet.operation import OPERATION_NAMES
from kudulite.wal import record_format
from kudulite.writes import batch_pieces
from tests.support.doubles.killing_storage import FailingStorage
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.row_writes import (
    MIDDLE,
    NotingStorage,
    new_table,
    put,
    store_of,
    unflushed,
)
from tests.support.tiers import tiered

LIMIT = 20
UTC = datetime.UTC
Outcome = tuple[Any, list[tuple]]


def small_table(core: CoreTables, tablets: int = 1, **options) -> Table:
    """A table whose client takes up to LIMIT rows through the log."""
    return new_table(core.client("small", small_write_rows_max=LIMIT, **options), tablets)


def rows(*keys: int, **values) -> list[dict]:
    """Rows of these keys, all with the same values."""
    return [{"k": k, **values} for k in keys]


# -- which way


def test_a_batch_of_few_large_rows_is_a_bulk_write(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """The log holds rows in memory until they are flushed."""
    table = small_table(core)
    monkeypatch.setattr(batch_pieces, "FEW_BYTES_MAX", 40)
    table.upsert(rows(1, 2))
    assert len(unflushed(table)) == 1
    table.upsert(rows(*range(LIMIT)))
    assert len(unflushed(table)) == 0
    assert stored(table) == [(k, None, 7) for k in range(LIMIT)]


def test_a_small_batch_is_one_frame(core: CoreTables):
    """No version is made, and no file but the log's segment."""
    disk = NotingStorage()
    table = small_table(core, storage=disk)
    table.upsert(rows(0))
    disk.steps.clear()
    result = table.upsert(rows(*range(LIMIT), v=1))
    assert [step for step, _ in disk.steps] == ["append", "fsync"]
    assert (result.inserted, result.updated, result.version) == (LIMIT - 1, 1, 1)
    assert [record.timestamp for record in unflushed(table)][1:] == [result.timestamp]
    assert stored(table, result.timestamp) == [(k, 1, 7) for k in range(LIMIT)]
    assert stored(table, result.timestamp - 1) == [(0, None, 7)]


@pytest.mark.parametrize("count", [LIMIT, LIMIT + 1, 3 * LIMIT])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_threshold_counts_rows_of_all_batches(core: CoreTables, count: int, size: int):
    """Up to it they go through the log; with one more it is a bulk write, and none is lost."""
    table = small_table(core)
    whole = pa.Table.from_pylist(rows(*range(count), v=1, w=2), table.arrow_schema)
    batches = whole.to_batches(max_chunksize=size)
    result = table.insert(pa.RecordBatchReader.from_batches(whole.schema, batches))
    assert result.inserted == count
    assert (table.version, len(unflushed(table))) == ((1, 1) if count == LIMIT else (2, 0))
    assert stored(table) == [(k, 1, 2) for k in range(count)]


def test_rows_of_several_tablets_are_one_commit(core: CoreTables):
    """Of one frame, at one time; a tablet has its own rows of it."""
    disk = NotingStorage()
    table = small_table(core, 2, storage=disk)
    table.insert(rows(0))
    disk.steps.clear()
    result = table.insert(rows(1, MIDDLE, MIDDLE + 1))
    assert [step for step, _ in disk.steps] == ["append", "fsync"]
    assert (table.version, result.version, result.inserted) == (1, 1, 3)
    assert [unflushed(table, number)[-1].row_count for number in (0, 1)] == [1, 2]
    assert stored(table, result.timestamp - 1) == [(0, None, 7)]
    assert [row[0] for row in stored(table, result.timestamp)] == [0, 1, MIDDLE, MIDDLE + 1]


# Writes of the row k = 1 by their options.
LOGGED: dict[str, Callable[[Table], kudulite.WriteResult]] = {
    "mixed": lambda table: table.apply([{"op": "upsert", "k": 1}, {"op": "delete_ignore", "k": 9}]),
    "application": lambda table: table.upsert(rows(1), application_id="a", application_version=1),
    "ordered": lambda table: table.upsert(rows(1, v=2), ordering_column="v"),
    "message": lambda table: table.upsert(rows(1), message="why"),
    "computed": lambda table: table.upsert(rows(1), read_at=table.current_timestamp()),
    "unchanged": lambda table: table.upsert(rows(1), unchanged="skip"),
}


@pytest.mark.parametrize("name", LOGGED)
def test_writes_with_options_go_through_the_log(core: CoreTables, name: str):
    """All but those that the log has no form for."""
    table = small_table(core)
    assert LOGGED[name](table).inserted == 1
    assert (table.version, len(unflushed(table)), len(stored(table))) == (1, 1, 1)


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.overwrite(rows(1)),
        lambda table: table.apply(
            [{"op": "I", "k": 1, "v": 1}, {"op": "D", "k": 2, "v": 1}], ordering_column="v"
        ),
    ],
    ids=["overwrite", "ordered delete"],
)
def test_what_a_log_cannot_do_is_a_bulk_write(core: CoreTables, write: Callable):
    """However small it is: the end of all rows, and a delete that has to be remembered."""
    table = small_table(core)
    write(table)
    assert (table.version, unflushed(table)) == (2, [])
    assert [row[0] for row in stored(table)] == [1]


def test_rows_that_are_too_large_for_a_record_are_a_bulk_write(
    core: CoreTables, monkeypatch: pytest.MonkeyPatch
):
    """Nobody notices."""
    table = small_table(core)
    monkeypatch.setattr(record_format, "PAYLOAD_BYTES_MAX", 100)
    assert table.insert(rows(*range(10), v=1)).inserted == 10
    assert (table.version, unflushed(table)) == (2, [])
    assert len(stored(table)) == 10


def test_a_client_without_small_writes_has_bulk_writes_only(core: CoreTables):
    """A limit of no rows."""
    table = new_table(core.client(small_write_rows_max=0))
    table.insert(rows(1))
    assert (table.version, unflushed(table)) == (2, [])


def test_an_empty_batch_writes_nothing(core: CoreTables):
    """It is checked as a bulk write is."""
    table = small_table(core)
    put(table, 1)
    for data in ([], table.arrow_schema.empty_table(), {"k": []}):
        result = table.upsert(data)
        assert (result.inserted, result.updated) == (0, 0)
    assert len(unflushed(table)) <= 1
    with pytest.raises(KuduliteError, match="no column 'x'"):
        table.upsert(pa.table({"k": pa.array([], pa.int32()), "x": pa.array([], pa.int32())}))
    assert stored(table) == [(1, 0, 7)]


# -- the same as a bulk write


BATCHES: dict[str, list[dict]] = {
    "new": rows(10, 11, v=1),
    "present": rows(1, 2, v=1, w=2),
    "some of each": [*rows(1, v=5), *rows(10, v=6), *rows(2, v=7), *rows(11, v=8)],
    "twice": [*rows(10, v=1), *rows(1, v=1), *rows(10, v=2), *rows(1, v=2)],
    "many": rows(*range(18), v=3),
    "keys only": rows(1, 10),
    "nulls": [*rows(1, v=None), *rows(2, v=3), *rows(10, v=None)],
    "a null where none may be": [*rows(1, w=None), *rows(2, w=3), *rows(10, w=None)],
    "a null key": [*rows(1, v=3), {"k": None, "v": 4}],
    "without its key": [{"v": 3}],
    "an unknown column": rows(1, x=3),
    "a value that does not fit": rows(1, v=1 << 40),
    "a value in a later row": [{"k": 10, "v": 1, "r": None}, {"k": 10, "v": None, "r": 1}],
    "present and without a value": [{"k": 10, "r": None}, {"k": 1, "r": 1}, {"k": 11, "r": 2}],
    "uncovered": rows(2 * MIDDLE, 1, 2 * MIDDLE + 1, v=1),
    "only uncovered": rows(2 * MIDDLE),
}


def outcome(table: Table, operation: str, batch: list[dict], **options) -> Outcome:
    """The result or error of a write, as a caller sees it, and the rows after it."""
    try:
        result = getattr(table, operation)(batch, **options)
        found: Any = (result.inserted, result.updated, result.deleted, result.ignored)
    except RowError as error:
        found = (RowError, str(error), error.reason, error.row_count, error.keys)
    except KuduliteError as error:
        found = (type(error), str(error))
    return found, stored(table)


def prepare(client: Client, table: Table) -> None:
    """Have the rows 1 to 4 and no others, whatever is there; through the log."""
    session, given = client.new_session(), {"r": 0} if "r" in table.schema.names else {}
    for k in range(20):
        if 1 <= k <= 4:
            session.apply(table.new_upsert({"k": k, "v": k, "w": k, **given}))
        else:
            session.apply(table.new_delete_ignore({"k": k}))
    session.flush()


@tiered("options", [{}, {"ignore_null": True}], quick=1, ids=["plain", "ignore_null"])
@pytest.mark.parametrize(
    ("operation", "required"),
    [
        *((name, False) for name in OPERATION_NAMES),
        *((name, True) for name in ("insert", "insert_ignore", "upsert")),
    ],
)
def test_results_and_errors_equal_those_of_a_bulk_write(
    core: CoreTables, operation: str, options: dict, required: bool
):
    """Counts, rows, and every word and attribute of an error, for all kinds of batches."""
    found: list[dict[str, Outcome]] = []
    for limit in (1000, 0):
        client = core.client(str(limit), small_write_rows_max=limit)
        table = new_table(client, 2, required=required)
        table.overwrite(rows(1, 3, **({"r": 5} if required else {})))
        found.append({})
        for name, batch in BATCHES.items():
            prepare(client, table)
            found[-1][name] = outcome(table, operation, batch, **options)
    assert found[0] == found[1]


def test_a_refused_batch_leaves_nothing(core: CoreTables):
    """All or nothing, though its rows are looked at one by one."""
    table = small_table(core)
    put(table, 5)
    with pytest.raises(RowError, match="key already present") as caught:
        table.insert(rows(*range(10), v=1))
    assert (caught.value.row_count, caught.value.keys) == (1, ((5,),))
    assert stored(table) == [(5, 0, 7)]
    assert len(unflushed(table)) == 1


def test_a_null_that_is_to_be_ignored_leaves_its_cell_alone(core: CoreTables):
    """In a new row it is the default."""
    table = small_table(core)
    table.insert(rows(1, v=1, w=1))
    result = table.upsert(
        [{"k": 1, "v": None, "w": 2}, {"k": 2, "v": 2, "w": None}], ignore_null=True
    )
    assert (result.inserted, result.updated) == (1, 1)
    assert stored(table) == [(1, 1, 2), (2, 2, 7)]
    assert table.version == 1


@pytest.mark.parametrize(
    "options",
    [
        {"ordering_column": "v"},
        {"ordering_column": "v", "ignore_null": True},
        {"unchanged": "skip"},
        {},
    ],
    ids=["ordered", "ordered, without nulls", "unchanged", "mixed"],
)
@tiered("seed", range(20), quick=6)
def test_random_batches_with_options_equal_bulk_writes(core: CoreTables, options: dict, seed: int):
    """Counts, errors, rows and changes, on rows in memory, on disk, and of both."""
    tables = [new_table(core.client(str(n), small_write_rows_max=n), 2) for n in (0, 1000)]
    choose, found = random.Random(seed), []
    for _ in range(12):
        keys = [choose.randrange(6) + choose.choice([0, MIDDLE]) for _ in range(5)]
        batch = [{"k": k, "v": choose.choice([None, 0, 1, 2]), "w": k} for k in keys]
        step = choose.choice(["upsert", "apply", "upsert", "apply", "flush", "compact"])
        words = [choose.choice(["upsert", "insert_ignore", "delete_ignore", "U"]) for _ in batch]
        operations = [{"op": word, **row} for word, row in zip(words, batch, strict=True)]
        start = [table.current_timestamp() for table in tables]
        for table in tables:
            if step == "upsert":
                found.append(outcome(table, "upsert", batch, **options))
            elif step == "apply":
                found.append(outcome(table, "apply", operations, **options))
            elif table is tables[choose.randrange(2)]:
                getattr(table, step)()
        # A bulk write names the rows that the first tablet refuses, the log those of all.
        alike = [(f[0][:3:2] if f[0][0] is RowError else f[0], f[1]) for f in found[-2:]]
        assert alike[:1] == alike[1:]
        changes = [
            [
                {**row, "_commit_version": 0, "_commit_timestamp": 0}
                for row in table.changes(at).to_pylist()
            ]
            for table, at in zip(tables, start, strict=True)
        ]
        assert changes[0] == changes[1]


def test_a_computed_batch_sees_changes_in_the_log(core: CoreTables):
    """A change of one of its keys after the rows were read is a conflict, wherever it is."""
    table = small_table(core, 2)
    table.insert(rows(1, 2, MIDDLE, v=1))
    read_at = table.current_timestamp()
    table.update(rows(MIDDLE, v=2))
    assert table.update(rows(1, v=3), read_at=read_at).updated == 1
    with pytest.raises(ConflictError, match="changed after"):
        table.update(rows(2, MIDDLE, v=4), read_at=read_at)
    table.flush()
    with pytest.raises(ConflictError, match="changed after"):
        table.update(rows(2, MIDDLE, v=4), read_at=read_at)
    assert stored(table) == [(1, 3, 7), (2, 1, 7), (MIDDLE, 2, 7)]


# -- the list of versions


def listed(table: Table) -> list[tuple]:
    """The operation, rows and message of each write in the list of versions."""
    found = [one for one in table.versions() if one.operation not in ("create", "memory flush")]
    return [(v.operation, v.inserted, v.updated, v.deleted, v.message) for v in found]


def test_a_commit_of_the_log_is_listed(core: CoreTables):
    """Before and after the flush that takes it over, for each process; its moment is readable."""
    table = small_table(core, 2)
    first = table.insert(rows(1, MIDDLE), message="first")
    second = table.apply([{"op": "U", "k": 1, "v": 5}, {"op": "D", "k": MIDDLE}])
    expected = [("apply", 0, 1, 1, ""), ("insert", 2, 0, 0, "first")]
    for _ in range(2):
        for reader in (table, core.client("small").table("t")):
            assert listed(reader) == expected
            found = {one.operation: one for one in reader.versions()}
            assert found["insert"].timestamp == first.timestamp
            assert found["apply"].timestamp == second.timestamp
            assert found["apply"].version is None and f":{os.getpid()}" in found["apply"].writer
            stamps = [one.timestamp for one in reader.versions()]
            assert stamps == sorted(stamps, reverse=True)
        assert stored(table, first.timestamp) == [(1, None, 7), (MIDDLE, None, 7)]
        table.flush()
    assert table.check().problems == ()


def test_a_flush_of_some_tablets_takes_over_what_is_behind_it(core: CoreTables):
    """Commits whose rows wait in the log stay there, in the list, each once."""
    table = small_table(core, 2)
    table.insert(rows(1), message="a")
    table.insert(rows(MIDDLE), message="b")
    table.insert(rows(2), message="c")
    for number in (0, 1):
        memory_flush.flush_table(store_of(table), [table.tablet_ids[number]])
        for reader in (table, core.client("small").table("t")):
            assert [row[-1] for row in listed(reader)] == ["c", "b", "a"]
    table.upsert(rows(*range(LIMIT + 1)), message="bulk")
    table.insert(rows(90), message="d")
    assert [row[-1] for row in listed(table)] == ["d", "bulk", "c", "b", "a"]
    assert table.check().problems == ()


def test_the_newest_writes_are_listed(core: CoreTables):
    """As many as of bulk writes, in the log and in the manifest together."""
    table = small_table(core)
    for number in range(130):
        table.upsert(rows(number), message=str(number))
        if number == 60:
            table.flush()
    expected = [str(number) for number in range(129, 29, -1)]
    for _ in range(2):
        assert [row[-1] for row in listed(table)] == expected
        table.flush()


# -- exactly once


def test_a_version_of_an_application_is_written_once(core: CoreTables):
    """In the log, after a flush, in another process, and by a bulk write; so is none at all."""
    table = small_table(core, 2)

    def write(target: Table, number: int, *keys: int) -> bool:
        batch = {"op": ["upsert"] * len(keys), "k": list(keys), "v": [number] * len(keys)}
        options = {"application_id": "a", "application_version": number}
        return target.apply(batch, **options).skipped

    assert not write(table, 1, 1, MIDDLE)
    assert not write(table, 2)
    assert not table.delete_ignore(rows(77), application_id="b", application_version=5).skipped
    for _ in range(2):
        for reader in (table, core.client("small", small_write_rows_max=LIMIT).table("t")):
            assert write(reader, 1, 5) and write(reader, 2, 5)
            assert write(reader, 2, *range(LIMIT + 1))
            bulk = reader.new_bulk_write(application_id="b", application_version=5)
            assert bulk.is_committed and bulk.commit([bulk.stage([])]).skipped
        table.flush()
    assert [row[0] for row in stored(table)] == [1, MIDDLE]
    assert not write(table, 3, 5)
    assert [row[:2] for row in stored(table)] == [(1, 1), (5, 3), (MIDDLE, 1)]


# -- tasks


def test_tasks_of_few_rows_hand_them_over(core: CoreTables):
    """They write no file; all of them together are one commit, in the order of their numbers."""
    disk = NotingStorage()
    table = small_table(core, 2, storage=disk)
    write = pickle.loads(pickle.dumps(table.new_bulk_write("upsert", message="tasks")))
    batches = [pa.Table.from_pylist(rows(1, MIDDLE, v=v, w=v), table.arrow_schema) for v in (1, 2)]
    staged = [write.stage([batch], number) for number, batch in enumerate(batches)]
    assert not [*table.path.rglob("*.parquet")] and all(task.rows is not None for task in staged)
    result = write.commit(pickle.loads(pickle.dumps(staged[::-1])))
    assert (result.inserted, result.updated, table.version) == (2, 2, 1)
    assert stored(table) == [(1, 2, 2), (MIDDLE, 2, 2)]
    assert listed(table) == [("upsert", 2, 2, 0, "tasks")]
    assert [*(table.path / "writes").iterdir()] == []
    with pytest.raises(ConflictError, match="is committed already"):
        write.commit(staged)
    assert stored(table) == [(1, 2, 2), (MIDDLE, 2, 2)]


@pytest.mark.parametrize("counts", [(LIMIT, 1), (1, LIMIT + 1), (LIMIT + 1, 1), (0, LIMIT)])
def test_the_commit_decides_by_the_sum_of_all_tasks(core: CoreTables, counts: tuple[int, int]):
    """Rows that were handed over go to files there, beside those of large tasks."""
    table = small_table(core, 2)
    write, first, staged = table.new_bulk_write("insert"), 0, []
    for number, count in enumerate(counts):
        batch = pa.Table.from_pylist(rows(*range(first, first + count), w=1), table.arrow_schema)
        staged.append(write.stage([batch], number))
        first += count
    assert write.commit(staged).inserted == first
    assert (table.version == 1) == (first <= LIMIT)
    assert [row[0] for row in stored(table)] == list(range(first))
    assert table.check().problems == ()


def test_an_aborted_write_of_few_rows_is_refused(core: CoreTables):
    """Its rows are in nobody's hands but those of the tasks."""
    table = small_table(core)
    write = table.new_bulk_write("upsert")
    staged = write.stage([pa.Table.from_pylist(rows(1, w=1), table.arrow_schema)])
    write.abort()
    with pytest.raises(ConflictError, match="was aborted"):
        write.commit([staged])
    assert (stored(table), unflushed(table)) == ([], [])


def test_a_task_of_few_rows_is_checked_where_it_runs(core: CoreTables):
    """A null key is an error of the task; a key that is there is one of the commit."""
    table = small_table(core)
    table.insert(rows(1))
    write = table.new_bulk_write("insert", columns=["k"])
    with pytest.raises(RowError, match="null"):
        write.stage([pa.table({"k": pa.array([None], pa.int32())})])
    staged = write.stage([pa.table({"k": pa.array([1], pa.int32())})])
    with pytest.raises(RowError, match="key already present"):
        write.commit([staged])
    write.abort()


# -- values


def test_values_of_every_type_go_through_the_log(core: CoreTables):
    """As exactly as through a file: years that Python has not, NaN, all 38 digits."""
    micros = pa.timestamp("us", tz="UTC")
    far = 400_000_000_000_000_000  # in the year 14645
    data = pa.table(
        {
            "t": pa.array([far, -62_135_596_800_000_000 - 1, 0], micros),
            "n": pa.array([far, None, -far], pa.timestamp("us")),
            "d": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
            "x": pa.array([float("nan"), -0.0, float("-inf")], pa.float64()),
            "f": pa.array([1.5, None, float("inf")], pa.float32()),
            "m": pa.array([Decimal(10**38 - 1), Decimal(-1), None], pa.decimal128(38, 0)),
            "b": pa.array([b"", b"\0\xff", None], pa.binary()),
            "s": pa.array(["", "a\0b", "\U0001f600"], pa.string()),
            "i": pa.array([-128, 127, None], pa.int8()),
            "o": pa.array([True, None, False], pa.bool_()),
        }
    )
    client = core.client(small_write_rows_max=LIMIT)
    table = client.create_table("t", data.schema, primary_key=["t"])
    assert table.insert(data).inserted == 3
    assert (table.version, len(unflushed(table))) == (1, 1)
    expected = shown(data.take(pa.array([1, 2, 0])))
    for _ in range(2):
        for reader in (table, core.client().table("t")):
            assert shown(reader.scan(ordered=True).to_arrow()) == expected
        table.flush()
    keys = pa.table({"t": data["t"]})
    assert table.get_many(keys).num_rows == 3
    assert table.delete(keys).deleted == 3


def shown(data: pa.Table) -> str:
    """All cells as text, -0.0 unlike 0.0; moments as numbers, for years that Python has not."""
    columns = [c.cast("int64") if pa.types.is_timestamp(c.type) else c for c in data.columns]
    return repr([column.to_pylist() for column in columns])


def test_other_arrow_types_are_cast_as_in_bulk_writes(core: CoreTables):
    """Large and dictionary strings, wider integers that fit, moments of other units."""
    schema = pa.schema([("k", pa.int32()), ("s", pa.string()), ("t", pa.timestamp("us", "UTC"))])
    data = pa.table(
        {
            "k": pa.array([1, 2], pa.int64()),
            "s": pa.array(["a", None]).dictionary_encode(),
            "t": pa.array([1, 2], pa.timestamp("s", "Europe/Berlin")),
        }
    )
    found = []
    for limit in (0, 1000):
        client = core.client(str(limit), small_write_rows_max=limit)
        table = client.create_table("t", schema, primary_key="k")
        table.insert(data)
        found.append(stored(table))
    assert found[0] == found[1]
    assert [row[1] for row in found[0]] == ["a", None]


# -- what can go wrong


def test_an_error_of_the_log_is_raised_as_it_is(core: CoreTables):
    """The lock, the disk: nothing is written."""
    table = small_table(core, lock_timeout_seconds=0.0)
    put(table, 1)
    with store_of(table).turn() as lock:
        lock.announce("a test")
        with pytest.raises(LockTimeoutError, match="held by a test"):
            table.upsert(rows(2))
    failing = core.client("small", small_write_rows_max=LIMIT, storage=FailingStorage(0))
    with pytest.raises(StorageError, match="a bad day"):
        failing.table("t").upsert(rows(2))
    assert stored(table) == [(1, 0, 7)]


def test_a_batch_that_changes_nothing_has_the_time_of_what_is_there(core: CoreTables):
    """No frame is written; a read at its time shows what it has seen."""
    table = small_table(core)
    timestamp = put(table, 1)
    result = table.insert_ignore(rows(1, v=9))
    assert (result.timestamp, result.ignored, result.version) == (timestamp, 1, 1)
    assert stored(table, result.timestamp) == [(1, 0, 7)]


def test_bulk_writes_and_small_ones_take_turns(core: CoreTables):
    """Each on what the other left, and the times of all of them stay readable."""
    table = small_table(core)
    versions = {}
    for turn in range(6):
        size = 1 if turn % 2 else LIMIT + 1
        result = table.upsert(rows(*range(turn, turn + size), v=turn))
        versions[result.timestamp] = stored(table)
    assert list(versions) == sorted(versions)
    for timestamp, found in versions.items():
        assert stored(core.client("small").table("t"), timestamp) == found
    assert kudulite.open_table(table.path).scan().count() == len(stored(table))
