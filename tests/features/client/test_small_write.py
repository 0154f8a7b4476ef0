"""Small Arrow batches go through one tablet's log; apart from that they are like bulk writes."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from kudulite.client import bulk_write
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import KuduliteError, LockTimeoutError, RowError, StorageError
from kudulite.tablet.operation import OPERATION_NAMES
from tests.support.doubles.killing_file_system import FailingFileSystem
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.row_writes import (
    MIDDLE,
    NotingFileSystem,
    entry_of,
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
    monkeypatch.setattr(bulk_write, "_SMALL_WRITE_BYTES_MAX", 40)
    table.upsert(rows(1, 2))
    assert len(unflushed(table)) == 1
    table.upsert(rows(*range(LIMIT)))
    assert len(unflushed(table)) == 0
    assert stored(table) == [(k, None, 7) for k in range(LIMIT)]


def test_a_small_batch_is_one_frame(core: CoreTables):
    """No version is made, and no file but the log's segment."""
    disk = NotingFileSystem()
    table = small_table(core, file_system=disk)
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


def test_rows_of_several_tablets_are_a_bulk_write(core: CoreTables):
    """One step for all of them; each alone goes through its log."""
    table = small_table(core, 2)
    table.insert(rows(1, MIDDLE))
    assert (table.version, unflushed(table, 0), unflushed(table, 1)) == (2, [], [])
    table.insert(rows(2))
    table.insert(rows(MIDDLE + 1))
    assert [len(unflushed(table, number)) for number in (0, 1)] == [1, 1]
    assert table.version == 2
    assert [row[0] for row in stored(table)] == [1, 2, MIDDLE, MIDDLE + 1]


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.overwrite(rows(1)),
        lambda table: table.apply([{"op": "upsert", "k": 1}]),
        lambda table: table.upsert(rows(1), application_id="a", application_version=1),
        lambda table: table.upsert(rows(1, v=2), ordering_column="v"),
    ],
    ids=["overwrite", "mixed", "application", "ordering"],
)
def test_what_a_log_cannot_do_is_a_bulk_write(core: CoreTables, write: Callable):
    """However small it is."""
    table = small_table(core)
    write(table)
    assert (table.version, unflushed(table)) == (2, [])
    assert len(stored(table)) == 1


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


def test_an_error_of_the_tablet_is_raised_as_it_is(core: CoreTables):
    """The lock, the disk: nothing is written."""
    table = small_table(core, lock_timeout_seconds=0.0)
    put(table, 1)
    with store_of(table).lock(entry_of(table).id) as lock:
        lock.announce("a test")
        with pytest.raises(LockTimeoutError, match="held by a test"):
            table.upsert(rows(2))
    failing = core.client("small", small_write_rows_max=LIMIT, file_system=FailingFileSystem(0))
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
