"""Changes as a user asks for them: moments, columns, forms of the result, and what is refused."""

import itertools

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    ColumnNotFoundError,
    OptionError,
    SchemaError,
    TimestampError,
)
from tests.support.tables.core_tables import (
    CoreTables,
    ManualClock,
    altered,
    in_order,
    stored,
    tuples,
)

MICROSECONDS_A_DAY = 24 * 3600 * 1_000_000
TIMES = ["_commit_version", "_commit_timestamp"]


def times(moment: int) -> dict[str, object]:
    """The columns of a change that say when it was."""
    return dict(zip(TIMES, (moment, kudulite.Timestamp(moment).to_datetime()), strict=True))


@pytest.fixture
def table(core: CoreTables) -> Table:
    """Keys 0 … 9 in two tablets."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = core.client().create_table("t", schema, primary_key="k", hash_partitions=[(["k"], 2)])
    table.insert([{"k": k, "v": f"v{k}"} for k in range(10)])
    return table


def test_a_window_leaves_out_its_start_and_holds_its_end(table):
    """A change at `start` was told by the window before; chained windows tell each one once."""
    start = table.current_timestamp()
    first = table.update([{"k": 1, "v": "a"}]).timestamp
    second = table.delete([{"k": 2}]).timestamp
    third = table.insert([{"k": 20, "v": "n"}]).timestamp
    assert table.changes(start, first).to_pylist() == [
        {"k": 1, "v": "a", "_change_type": "update_postimage", **times(first)}
    ]
    assert table.changes(first, second).to_pylist() == [
        {"k": 2, "v": "v2", "_change_type": "delete", **times(second)}
    ]
    assert table.changes(second).to_pylist() == [
        {"k": 20, "v": "n", "_change_type": "insert", **times(third)}
    ]
    assert table.changes(third).to_pylist() == []
    assert table.changes(third, third).count() == 0


def test_what_came_and_went_is_not_told(table):
    """A row that was there at neither end was never seen; one that was at both is updated."""
    start = table.current_timestamp()
    table.insert([{"k": 30, "v": "x"}])
    table.delete([{"k": 30}])
    table.delete([{"k": 3}])
    back = table.insert([{"k": 3, "v": "back"}]).timestamp
    assert table.changes(start, images="both").to_pylist() == [
        {"k": 3, "v": "v3", "_change_type": "update_preimage", **times(back)},
        {"k": 3, "v": "back", "_change_type": "update_postimage", **times(back)},
    ]


def test_a_preimage_stands_before_its_update_alone(table):
    """Not before an insert or a delete; of an update to the same values, too; within a filter."""
    start = table.current_timestamp()
    table.upsert([{"k": 1, "v": "v1"}, {"k": 2, "v": None}, {"k": 50, "v": "n"}])
    table.delete([{"k": 3}])
    found = table.changes(start, images="both").to_pylist()
    assert in_order((r["k"], r["v"], r["_change_type"]) for r in found) == in_order(
        [
            (1, "v1", "update_preimage"),
            (1, "v1", "update_postimage"),
            (2, "v2", "update_preimage"),
            (2, None, "update_postimage"),
            (3, "v3", "delete"),
            (50, "n", "insert"),
        ]
    )
    places = {(r["k"], r["_change_type"]): place for place, r in enumerate(found)}
    for key in (1, 2):
        assert places[key, "update_postimage"] == places[key, "update_preimage"] + 1
    left = table.changes(start, where="v = 'v2'", images="both").to_pylist()
    assert [(r["v"], r["_change_type"]) for r in left] == [
        ("v2", "update_preimage"),
        (None, "update_postimage"),
    ]
    after = table.changes(start).to_pylist()
    assert after == [r for r in found if r["_change_type"] != "update_preimage"]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), "categories"])
@pytest.mark.parametrize("count", [3, 3000])
def test_changes_with_both_images_are_applied_as_they_are(core, kind, count):
    """A preimage is nothing to write, in any layout of text; only preimages are no rows at all."""
    client, schema = core.client(), pa.schema([("k", pa.int64()), ("v", pa.string())])
    source, copy = (client.create_table(name, schema, primary_key="k") for name in ("s", "c"))
    whole = pa.table({"k": range(count), "v": ["old"] * count}, schema=schema)
    source.insert(whole)
    copy.insert(whole)
    start = source.current_timestamp()
    source.update(pa.table({"k": range(1, count), "v": ["new"] * (count - 1)}))
    source.delete([{"k": 1}])
    source.insert([{"k": count, "v": "more"}])
    rows = source.changes(start, images="both").to_arrow().drop_columns(TIMES)
    before = rows.filter(pc.equal(rows["_change_type"], "update_preimage"))
    for some, counts in ((before, (0, 0, 0)), (rows, (1, count - 2, 1))):
        types = some["_change_type"]
        types = types.dictionary_encode() if kind == "categories" else types.cast(kind)
        some = some.set_column(2, "_change_type", types)
        result = copy.apply(some, operation_column="_change_type")
        assert (result.inserted, result.updated, result.deleted) == counts
    assert stored(copy) == stored(source)


def test_moments_are_given_as_to_a_scan(table):
    """ISO text, datetime, HybridTime; the window that was chosen can be read from the changes."""
    now = table.current_timestamp()
    table.delete([{"k": 0}])
    changes = table.changes(str(now))
    assert changes.start == now
    assert changes.count() == 1
    table.delete([{"k": 1}])
    assert changes.count() == 1, "the end is fixed when the changes are asked for"
    assert table.changes(changes.end).count() == 1


def test_the_result_comes_in_every_form(table):
    """Arrow, batches, a reader, pandas, dicts, and the Arrow C stream, all with one schema."""
    start = table.current_timestamp()
    table.delete([{"k": k} for k in range(4)])
    changes = table.changes(start, columns=["v"])
    schema = pa.schema(
        [
            pa.field("v", pa.string()),
            pa.field("_change_type", pa.string(), nullable=False),
            pa.field("_commit_version", pa.uint64(), nullable=False),
            pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        ]
    )
    assert changes.schema == schema
    assert changes.to_arrow().schema == schema
    expected = [f"v{k}" for k in range(4)]
    assert sorted(changes.to_arrow()["v"].to_pylist()) == expected
    assert changes.to_reader().read_all() == changes.to_arrow()
    assert pa.table(changes) == changes.to_arrow()
    assert sorted(changes.to_pandas()["v"]) == expected
    assert sorted(row["v"] for row in changes.to_pylist()) == expected
    assert all(batch.num_rows for batch in changes.to_batches())


def test_a_filter_tells_rows_that_enter_and_leave_it(table):
    """A predicate on a value holds for the row at either end; one on the key for the key."""
    start = table.current_timestamp()
    table.update([{"k": 1, "v": "in"}, {"k": 2, "v": "out"}, {"k": 3, "v": "else"}])
    rows = table.changes(start, where=table["v"] == "in").to_pylist()
    assert [(row["k"], row["v"]) for row in rows] == [(1, "in")]
    rows = table.changes(start, where=table["v"] == "v2").to_pylist()
    assert [(row["k"], row["v"]) for row in rows] == [(2, "out")]
    where = [table["k"] >= 2, table["k"] < 3]
    assert [row["k"] for row in table.changes(start, where=where).to_pylist()] == [2]
    assert table.changes(start, where=[table["v"] == "a", table["v"] == "b"]).count() == 0


def test_a_window_before_the_mark_is_refused(core):
    """The error names the start and the ancient history mark; so does that of a token."""
    clock = ManualClock()
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = core.client(clock=clock).create_table("t", schema, primary_key="k")
    table.insert([{"k": 1, "v": "a"}])
    start = table.current_timestamp()
    clock.microseconds += 1
    table.insert([{"k": 2, "v": "b"}])
    changes = table.changes(start)
    clock.microseconds += 8 * MICROSECONDS_A_DAY
    table.insert([{"k": 3, "v": "c"}])
    with pytest.raises(TimestampError, match=r"table 't': .*ancient history mark .*2023-"):
        table.changes(start)
    assert changes.count() == 1, "nothing was collected yet"


def test_impossible_windows_are_refused(table):
    """The error names the table and both moments, or the clock."""
    now = int(table.current_timestamp())
    later = int(table.delete([{"k": 0}]).timestamp)
    with pytest.raises(TimestampError, match=f"table 't': changes after .*{later}.*{now}.*older"):
        table.changes(later, now)
    with pytest.raises(TimestampError, match="table 't': .*2100-01-01.*clock"):
        table.changes("2100-01-01")
    with pytest.raises(TimestampError, match="table 't': .*2100-01-01.*clock"):
        table.changes(now, "2100-01-01")
    with pytest.raises(TimestampError, match="is not a moment"):
        table.changes("yesterday")


def test_unknown_names_are_refused(table):
    """Images, columns and predicates are checked before anything is read."""
    now = table.current_timestamp()
    with pytest.raises(
        OptionError, match="table 't': unknown images 'before' .*known: after, both"
    ):
        table.changes(now, images="before")
    with pytest.raises(ColumnNotFoundError, match="table 't'.*'x'"):
        table.changes(now, columns=["x"])
    with pytest.raises(ColumnNotFoundError, match="table 't'.*'x'"):
        table.changes(now, where=[kudulite.Predicate("x", "=", 1)])


def test_a_column_with_a_name_of_ours_can_be_left_out(core):
    """A table may have a column `_change_type`; its changes cannot show it under that name."""
    schema = pa.schema([("k", pa.int64()), ("_change_type", pa.string())])
    table = core.client().create_table("t", schema, primary_key="k")
    now = table.current_timestamp()
    table.insert([{"k": 1, "_change_type": "x"}])
    with pytest.raises(SchemaError, match="table 't': its column '_change_type' .*leave it out"):
        table.changes(now)
    assert table.changes(now, columns=["k"]).to_pylist()[0]["_change_type"] == "insert"


def test_changes_outlive_a_rename_and_a_drop(core, table):
    """A name means the column that had this name at the end of the window."""
    now = table.current_timestamp()
    table.update([{"k": 1, "v": "w"}])
    changes = table.changes(now, where=table["v"] == "w")
    client = core.client()
    altered(client, "t", lambda alterer: alterer.alter_column("v", rename_to="renamed"))
    assert [row["v"] for row in changes.to_pylist()] == ["w"]
    altered(client, "t", lambda alterer: alterer.drop_column("renamed"))
    table = altered(client, "t", lambda alterer: alterer.add_column("v", kudulite.string))
    table.compact()
    assert [row["v"] for row in changes.to_pylist()] == ["w"]
    again = table.changes(now, changes.end, where="v = 'w'")
    assert again.to_arrow().equals(changes.to_arrow())
    assert [row["k"] for row in table.changes(now).to_pylist()] == []  # of columns of now


def test_an_update_of_a_dropped_column_is_no_change(core, table):
    """Whether compactions have forgotten it or not."""
    client: Client = core.client()
    table = altered(client, "t", lambda alterer: alterer.add_column("w", kudulite.int32))
    now = table.current_timestamp()
    table.update([{"k": 1, "w": 5}])
    table.update([{"k": 2, "v": "v2"}])
    assert in_order(tuples(table.changes(now, columns=["k"]).to_arrow().select([0]))) == [
        (1,),
        (2,),
    ]
    altered(client, "t", lambda alterer: alterer.drop_column("w"))
    assert [row["k"] for row in table.changes(now).to_pylist()] == [2]
    assert len(table.history((1,))) == 1


def test_changes_outlive_a_wider_type(core):
    """A column is given in the type that it had when the changes were asked for."""
    columns = [kudulite.column("k", kudulite.int32), kudulite.column("v", kudulite.int8)]
    client = core.client()
    table = client.create_table("t", kudulite.schema(columns, "k"))
    table.insert([{"k": 1, "v": 5}])
    start = table.current_timestamp()
    table.update([{"k": 1, "v": 6}])
    changes = table.changes(start, where=table["v"] == 5, images="both")
    tokens = table.change_tokens(start, images="both")
    old = changes.to_arrow()
    assert [(row["k"], row["v"]) for row in old.to_pylist()] == [(1, 5), (1, 6)]
    table = altered(client, "t", lambda alterer: alterer.alter_column("v").type(kudulite.int32))
    assert changes.to_arrow() == old
    assert pa.Table.from_batches([b for token in tokens for b in token.open()]) == old
    last = table.update([{"k": 1, "v": 100_000}]).timestamp
    rows = table.changes(start, images="both").to_arrow()
    assert rows.schema.field("v").type == pa.int32()
    assert rows.to_pylist() == [
        {"k": 1, "v": 5, "_change_type": "update_preimage", **times(last)},
        {"k": 1, "v": 100_000, "_change_type": "update_postimage", **times(last)},
    ]
    assert [row["v"] for row in table.history(1).to_pylist()] == [5, 6, 100_000]


def test_a_dropped_range_is_deleted_rows(core):
    """One row for a key that came back in a range that was added later, with whatever bounds."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    bounds = [[0, 10], [10, 20]]
    client = core.client()
    table = client.create_table(
        "t",
        schema,
        primary_key="k",
        hash_partitions=[(["k"], 2)],
        range_partitions={"columns": ["k"], "bounds": bounds},
    )
    table.insert([{"k": k, "v": "old"} for k in (1, 2, 11, 12)])
    start = table.current_timestamp()
    table = altered(client, "t", lambda a: a.drop_range_partition({"k": 10}, {"k": 20}))
    table = altered(client, "t", lambda a: a.add_range_partition({"k": 10}, {"k": 12}))
    table = altered(client, "t", lambda a: a.add_range_partition({"k": 12}, {"k": 30}))
    table.insert([{"k": 12, "v": "new"}, {"k": 25, "v": "new"}])
    table.insert([{"k": 11, "v": "new"}])
    table.delete([{"k": 11}])
    expected = [
        (11, "old", "delete"),
        (12, "new", "update_postimage"),
        (12, "old", "update_preimage"),
        (25, "new", "insert"),
    ]
    changes = table.changes(start, images="both")
    assert in_order(tuples(changes.to_arrow().drop_columns(TIMES))) == expected
    tokens = table.change_tokens(start, images="both", split_size_bytes=1)
    found = pa.Table.from_batches([batch for token in tokens for batch in token.open()])
    assert in_order(tuples(found.drop_columns(TIMES))) == expected
    only = table.changes(start, where=table["k"] == 12).to_pylist()
    assert [row["_change_type"] for row in only] == ["update_postimage"]
    kinds = [row["_change_type"] for row in table.history(11).to_pylist()]
    assert kinds == ["insert", "delete", "insert", "delete"]
    assert [r["_change_type"] for r in table.history(12).to_pylist()] == [
        "insert",
        "delete",
        "insert",
    ]


def test_the_newest_change_stays_until_the_next(core):
    """Of bulk writes and single rows alike; of an empty table its creation. Upkeep is none."""
    client = core.client()
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    table = client.create_table("newest", schema, primary_key="k", hash_partitions=[(["k"], 2)])
    created = table.newest_change()
    assert created <= table.current_timestamp()
    for write in (
        lambda: table.upsert(pa.table({"k": [1, 2, 3], "v": [0, 0, 0]})),
        lambda: _one_row(client, table),
        lambda: table.delete(pa.table({"k": [2]})),
    ):
        before = table.newest_change()
        write()
        newest = table.newest_change()
        assert newest > before
        assert table.changes(before, newest).count() >= 1
        table.flush()
        table.compact()
        assert table.newest_change() == newest == core.client().table("newest").newest_change()


def _one_row(client, table) -> None:
    session = client.new_session()
    session.apply(table.new_upsert({"k": 1, "v": 5}))
    session.flush()


def test_few_changes_of_a_large_block_equal_the_difference_of_two_scans(core):
    """Text with few values and with many, nulls, and rows that no delta sets completely."""
    count, types = 40_000, {"k": pa.int64(), "few": pa.string(), "many": pa.string()}
    schema = pa.schema([*types.items(), ("x", pa.float64())])

    def rows(keys, salt):
        cells = {
            "k": keys,
            "few": [None if k % 7 == 0 else f"f{(k + salt) % 5}" for k in keys],
            "many": [None if k % 11 == 0 else f"m{k}{salt}" for k in keys],
            "x": [None if k % 13 == 0 else k / 8 + salt for k in keys],
        }
        return pa.table(cells, schema=schema)

    table = core.client().create_table("t", schema, primary_key="k")
    moments = [table.current_timestamp(), table.insert(rows(range(count), 0)).timestamp]
    moments.append(table.upsert(rows(range(5, count + 50, 50), 1)).timestamp)
    moments.append(table.update(rows(range(5, count, 75), 2).select(["k", "few"])).timestamp)
    moments.append(table.delete([{"k": k} for k in range(30, count, 90)]).timestamp)
    for _ in range(2):
        states = {at: {row["k"]: row for row in table.scan(at=at).to_pylist()} for at in moments}
        for start, end in itertools.combinations(moments, 2):
            old, new = states[start], states[end]
            found = table.changes(start, end, images="both").to_pylist()
            befores = {r["k"]: r for r in found if r["_change_type"] == "update_preimage"}
            changed = {r["k"]: r for r in found if r["_change_type"] != "update_preimage"}
            assert len(befores) + len(changed) == len(found)
            assert all(old[k] == new.get(k) for k in old.keys() - changed.keys())
            assert changed.keys() >= new.keys() - old.keys()
            for key, row in changed.items():
                shown = {name: row[name] for name in schema.names}
                assert shown == (new.get(key) or old[key])
                if key in befores:
                    assert {name: befores[key][name] for name in schema.names} == old[key]
                assert (key in befores) == (key in old and key in new)
        table.maintain()
