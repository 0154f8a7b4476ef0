"""`table.restore(moment)`: the rows of then become the rows of now."""

import random
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite
from kudulite.client import computed_writes
from kudulite.client.batch_writer import BatchWriter
from kudulite.errors import RowError, TimestampError
from tests.support.tables.core_tables import CoreTables, ManualClock, altered, stored
from tests.support.tiers import tiered

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema([("k", pa.int32()), ("v", pa.int64()), ("s", pa.string())])


@pytest.fixture
def table(core: CoreTables) -> kudulite.Table:
    """Rows (k, k, "x") for k in 0..9, in two tablets."""
    client = core.client()
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    table.insert(rows(range(10)))
    return table


def rows(keys, value: str | None = "x") -> pa.Table:
    """Rows (k, k, value)."""
    return pa.table({"k": keys, "v": keys, "s": [value] * len(keys)}, schema=SCHEMA)


def test_a_moment_before_the_table_was_created_is_refused(table):
    """As by `scan`; the rows of then are not none, and a slip of the pen deletes nothing."""
    for moment in ("1 hour ago", EPOCH):
        with pytest.raises(TimestampError, match=r"before (the table was created|1970)"):
            table.restore(moment)
    assert len(table) == 10
    table.restore(version=1)
    assert len(table) == 0


def test_inserts_updates_and_deletes_are_undone(table):
    """In one version, which counts them; the past stays, so a restore can be undone."""
    before, moment = stored(table), table.current_timestamp()
    table.delete(where=table["k"] < 2)
    table.upsert(rows([2, 3, 20, 21, 22], None))
    after, version = stored(table), table.version
    result = table.restore(moment, message="oops")
    assert stored(table) == before == stored(table, moment)
    assert (result.inserted, result.updated, result.deleted, result.ignored) == (2, 2, 3, 0)
    assert table.version == result.version == version + 1
    newest, undone = table.versions()[:2]
    assert (newest.operation, newest.message, newest.inserted) == ("restore", "oops", 2)
    table.restore(undone.timestamp)
    assert stored(table) == after
    assert stored(table, result.timestamp) == before


def test_nothing_changed_is_no_version(table):
    """A row that came and went, and a truncate that was undone, leave nothing to do."""
    moment, version = table.current_timestamp(), table.version
    result = table.restore(moment)
    assert (result.inserted, result.updated, result.deleted) == (0, 0, 0)
    assert result.version == table.version == version
    table.insert(rows([50]))
    table.delete(rows([50]))
    table.upsert(rows([1, 2]))
    assert table.restore(moment).version == table.version == version + 3


def test_a_truncate_is_undone(table):
    """Its rowsets ended; the rows are written again."""
    before, moment = stored(table), table.current_timestamp()
    table.truncate()
    assert table.restore(moment).inserted == 10
    assert stored(table) == before
    table.compact()
    assert stored(table) == before == stored(table, moment)


def test_cells_of_every_kind_are_restored(core):
    """Nulls, arrays, NaN, bytes, decimals, and the key's columns alone."""
    columns = []
    kinds = {
        "a": (kudulite.array(kudulite.string), [["x", None], None, []]),
        "b": (kudulite.binary, [b"\0", None, b""]),
        "d": (kudulite.decimal(5, 2), [Decimal("1.50"), None, Decimal(0)]),
        "t": (
            kudulite.unixtime_micros,
            [EPOCH, None, EPOCH.replace(year=1900)],
        ),
        "f": (kudulite.double, [0.5, None, -0.0]),
        "o": (kudulite.bool_, [True, None, False]),
    }
    columns.append(kudulite.column("k", kudulite.int32))
    for name, (kind, _) in kinds.items():
        columns.append(kudulite.column(name, kind))
    table = core.client().create_table("t", kudulite.schema(columns, "k"))
    cells = {name: values for name, (_, values) in kinds.items()}
    table.insert(pa.table({"k": [1, 2, 3], **cells}))
    before, moment = stored(table), table.current_timestamp()
    table.upsert(pa.table({"k": [1, 2, 3], **{n: v[1:] + v[:1] for n, v in cells.items()}}))
    table.delete([{"k": 2}])
    table.restore(moment)
    assert stored(table) == before and repr(table.get(3)["f"]) == "-0.0"
    keys = core.client().create_table("keys", pa.schema([("k", pa.int32())]), primary_key="k")
    keys.insert([{"k": 1}, {"k": 2}])
    moment = keys.current_timestamp()
    keys.upsert([{"k": 1}, {"k": 3}])
    keys.delete([{"k": 2}])
    keys.restore(moment)
    assert stored(keys) == [(1,), (2,)]


def test_zeros_of_both_signs_are_two_cells(core):
    """An update to an equal cell is left out, so equality is that of the bits."""
    kinds = pa.schema([("k", pa.int32()), ("f", pa.float64()), ("g", pa.float32())])
    table = core.client().create_table("t", kinds, primary_key="k")
    nan = float("nan")
    table.insert(pa.table({"k": [1, 2, 3], "f": [-0.0, 0.0, nan], "g": [1, -0.0, nan]}, kinds))
    moment = table.current_timestamp()
    table.upsert(pa.table({"k": [1, 2, 3], "f": [0.0, 0.0, nan], "g": [1, 0.0, nan]}, kinds))
    assert table.restore(moment).updated == 2
    assert repr(table.get(1)["f"]) == repr(table.get(2)["g"]) == "-0.0"


def test_a_column_that_was_added_since_stays(core, table):
    """With its default in the rows of then; a column that was dropped since stays dropped."""
    moment, count = table.current_timestamp(), table.scan().count()
    altered(core.client(), "t", lambda a: a.add_column("w", kudulite.int8, default=7))
    altered(core.client(), "t", lambda alterer: alterer.drop_column("s"))
    table.upsert(pa.table({"k": [0, 50], "v": [9, 9], "w": pa.array([1, 1], pa.int8())}))
    table.delete(where=table["k"] == 1)
    table.restore(moment)
    assert table.schema.names == ["k", "v", "w"]
    assert stored(table)[0] == (0, 0, 7)
    then = table.scan(["k", "v"], at=moment).to_arrow()
    assert sorted(table.scan(["k", "v"]).to_pylist(), key=str) == sorted(then.to_pylist(), key=str)
    assert table.scan().count() == count


def test_rows_of_a_range_that_was_dropped_since_are_refused(core):
    """Nothing is written; with the range they have a place again."""
    client = core.client()
    ranges = {"columns": ["k"], "bounds": [[0, 10], [10, 20]]}
    table = client.create_table("r", SCHEMA, primary_key="k", range_partitions=ranges)
    table.insert(rows([1, 11]))
    before, moment = stored(table), table.current_timestamp()
    altered(client, "r", lambda alterer: alterer.drop_range_partition(10, 20))
    with pytest.raises(RowError, match="no range partition covers the key"):
        table.restore(moment)
    altered(client, "r", lambda alterer: alterer.add_range_partition(10, 20))
    assert table.restore(moment).inserted == 1
    assert stored(table) == before


def test_a_moment_that_cannot_be_read_is_refused(core):
    """Before the history's start, before the table, or ahead of the clock."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = client.create_table("t", SCHEMA, primary_key="k")
    altered(client, "t", lambda alterer: alterer.set_history_retention(1))
    table.insert(rows([1]))
    moment = table.current_timestamp()
    clock.microseconds += 10_000_000
    table.insert(rows([2]))
    for bad in (moment, 1, "2099-01-01T00:00:00Z"):
        with pytest.raises(TimestampError):
            table.restore(bad)
    assert len(stored(table)) == 2


def test_a_write_of_others_in_between_is_undone_too(table, monkeypatch):
    """Its rows are read again, however often others write; it is never left half."""
    before, moment = stored(table), table.current_timestamp()
    table.upsert(rows([1, 2], "y"))
    plain, left = BatchWriter.run_bulk, [1, 2]

    def run(self, write, batches, *rest):
        if left:
            plain(self, table.new_bulk_write("upsert"), [rows([left.pop(), 30], "z")])
        return plain(self, write, batches, *rest)

    monkeypatch.setattr(BatchWriter, "run_bulk", run)
    table.restore(moment)
    assert stored(table) == before and not left
    monkeypatch.setattr(computed_writes, "ATTEMPTS_MAX", 2)
    table.upsert(rows([1], "y"))
    left.extend([1] * 3)
    table.restore(moment)
    assert stored(table) == before and len(left) == 1


@tiered("seed", range(12))
def test_a_restore_equals_the_scan_of_its_moment(core, seed):
    """Random writes, flushes and compactions; every moment stays what it was."""
    choose = random.Random(seed)
    client = core.client(small_write_rows_max=choose.choice([0, 1000]))
    table = client.create_table("t", SCHEMA, primary_key="k", hash_partitions=[(["k"], 2)])
    moments: dict[int, list[tuple]] = {}
    for _ in range(16):
        keys = choose.sample(range(20), choose.randint(1, 8))
        match choose.choice(["upsert", "delete", "row", "flush", "compact", "restore", "all"]):
            case "upsert":
                table.upsert(rows(keys, choose.choice(["a", "b", None])))
            case "delete":
                table.delete_ignore(rows(keys))
            case "row":
                with client.new_session() as session:
                    session.apply(table.new_upsert({"k": keys[0], "v": choose.randint(0, 99)}))
            case "flush":
                table.flush()
            case "compact":
                table.compact()
            case "all":
                table.overwrite(rows(keys, "c"))
            case "restore" if moments:
                moment = choose.choice(list(moments))
                table.restore(moment)
                assert stored(table) == moments[moment], seed
        moments[table.current_timestamp()] = stored(table)
    assert [stored(table, moment) for moment in moments] == list(moments.values()), seed
