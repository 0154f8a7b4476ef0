"""Altered tables: every way of reading shows old rows through the new schema."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    ColumnNotFoundError,
    ConflictError,
    KuduliteError,
    NotSupportedError,
    OptionError,
    SchemaError,
    TableExistsError,
    TimestampError,
    UsageError,
)
from kudulite.model.schema import Schema
from tests.support.tables.core_tables import CoreTables, ManualClock, altered
from tests.support.tables.readings import every_reading
from tests.support.tiers import tiered


@pytest.fixture
def client(core: CoreTables) -> Client:
    """A client with table t (a, b | v, n): hash on a, ranges on b from 0 to 100; 20 rows."""
    client = core.client()
    columns = [kudulite.column(name, kudulite.int32, nullable=False) for name in ("a", "b")]
    columns.append(kudulite.column("v", kudulite.string))
    columns.append(kudulite.column("n", kudulite.int64, nullable=False, default=7))
    part = kudulite.Partitioning().add_hash_partitions("a", 2).set_range_partition_columns("b")
    part.add_range_partition(0, 50).add_range_partition(50, 100)
    table = client.create_table("t", kudulite.schema(columns, ["a", "b"]), part)
    table.insert([{"a": i, "b": 5 * i, "v": f"v{i}"} for i in range(20)])
    table.update([{"a": 3, "b": 15, "v": "changed"}])
    return client


@pytest.mark.both
def test_an_added_column_shows_its_default_in_old_rows(client: Client):
    """It stays: a later change of the default is for later inserts."""
    table = client.table("t")
    before = table.current_timestamp()
    alterer = client.new_table_alterer(table)
    alterer.add_column("city", kudulite.string, default="Oslo")
    alterer.add_column("score").type(kudulite.int8).nullable(False).default(-1)
    alterer.add_column("free", "double")
    table = alterer.alter()
    table.insert([{"a": 1, "b": 0}])
    alterer = client.new_table_alterer(table)
    alterer.alter_column("city").remove_default()
    alterer.alter_column("score").default(5)
    table = alterer.alter()
    table.insert([{"a": 2, "b": 0}])
    rows = every_reading(table)
    assert (rows[0]["city"], rows[0]["score"], rows[0]["free"]) == ("Oslo", -1, None)
    assert [row["city"] for row in rows if row["b"] == 0] == ["Oslo", "Oslo", None]
    assert [row["score"] for row in rows if row["b"] == 0] == [-1, -1, 5]
    assert "city" not in every_reading(table, before)[0]
    table.update([{"a": 0, "b": 0, "city": None, "score": 0}])
    assert every_reading(table)[0] == {
        "a": 0, "b": 0, "v": "v0", "n": 7, "city": None, "score": 0, "free": None,
    }  # fmt: skip


@pytest.mark.both
def test_a_dropped_column_that_is_added_again_starts_anew(client: Client):
    """Neither base data nor deltas give the old values back; only the past has them."""
    table = client.table("t")
    before = table.current_timestamp()
    values = [row["v"] for row in every_reading(table)]
    for kind in (kudulite.string, kudulite.int16):
        table = client.new_table_alterer(table).drop_column("v").alter()
        with pytest.raises(KeyError):
            table["v"]
        assert "v" not in every_reading(table)[0]
        alterer = client.new_table_alterer(table)
        alterer.add_column("v", kind)
        table = alterer.alter()
        assert {row["v"] for row in every_reading(table)} == {None}
        assert [row["v"] for row in every_reading(table, before)] == values
        table.update([{"a": 4, "b": 20, "v": "4" if kind == kudulite.string else 4}])
    assert [row["v"] for row in every_reading(table) if row["v"] is not None] == [4]


@pytest.mark.both
def test_columns_and_the_table_are_renamed(client: Client):
    """Key columns too, which hash and range partitions follow; names may be swapped."""
    table = client.table("t")
    rows = every_reading(table)
    alterer = client.new_table_alterer(table)
    alterer.alter_column("a", rename_to="x")
    alterer.alter_column("b").rename("a")
    alterer.alter_column("x", rename_to="b")
    alterer.alter_column("v", "w").comment("text").encoding("plain").compression("lz4")
    table = alterer.rename("u").alter()
    assert (table.name, client.list_tables()) == ("u", ["u"])
    names = {"a": "b", "b": "a", "v": "w", "n": "n"}
    assert every_reading(table) == [{names[k]: v for k, v in row.items()} for row in rows]
    column = table.schema["w"]
    assert (column.comment, column.encoding, column.compression) == ("text", "plain", "lz4")
    table.upsert([{"b": 1, "a": 5, "w": "new"}, {"b": 1, "a": 99, "w": "other"}])
    assert table.get((1, 5))["w"] == "new"
    assert table.scan(where=[table["a"] >= 95]).count() == 2


@pytest.mark.both
def test_storage_attributes_are_of_files_that_are_written_later(client: Client):
    """Old ones stay as they are until a compaction; they outlive every other alteration."""
    table = client.table("t")
    old = set(table.path.rglob("base-*.parquet"))
    alterer = client.new_table_alterer(table)
    alterer.alter_column("v").encoding("plain").compression("gzip").comment("text")
    table = alterer.alter()
    alterer = client.new_table_alterer(table)
    alterer.alter_column("v", "w").default("x")
    table = alterer.drop_range_partition(50, 100).alter()
    column = table.schema["w"]
    assert (column.encoding, column.compression, column.comment) == ("plain", "gzip", "text")
    table.insert([{"a": 1, "b": 1}])
    table.compact()
    new = set(table.path.rglob("base-*.parquet")) - old
    groups = [pq.read_metadata(path).row_group(0) for path in new]
    chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
    written = [chunk for chunk in chunks if chunk.path_in_schema == "w"]
    assert len(written) >= 2
    assert {(chunk.compression, chunk.has_dictionary_page) for chunk in written} == {
        ("GZIP", False)
    }
    assert {pq.read_metadata(path).row_group(0).column(2).compression for path in old} == {"ZSTD"}
    assert [row["w"] for row in every_reading(table) if row["b"] == 1] == ["x"]


def test_scans_that_were_planned_before_keep_their_columns(client: Client):
    """Under the old names, also one that was dropped; never another one's values."""
    table = client.table("t")
    expected = sorted(table.scan(["v", "a"]).to_pylist(), key=lambda row: row["a"])
    plans = [{"columns": ["v", "a"]}, {"columns": ["v"], "where": [table["b"] < 50]}]
    scans = [table.scan(**plan) for plan in plans]
    tokens = [table.scan_tokens(**plan) for plan in plans]
    alterer = client.new_table_alterer(table)
    alterer.alter_column("v", "w")
    alterer.alter_column("a", "v_old")
    alterer.alter_column("b", "a")
    alterer.add_column("v", kudulite.int64, default=1)
    table = alterer.alter()

    def read(parts: list) -> list[dict]:
        return [row for token in parts for batch in token.open() for row in batch.to_pylist()]

    for found in (scans[0].to_pylist(), read(tokens[0])):
        assert sorted(found, key=lambda row: row["a"]) == expected
    for found in (scans[1].to_pylist(), read(tokens[1])):
        assert sorted(row["v"] for row in found) == sorted(row["v"] for row in expected[:10])
    client.new_table_alterer(table).drop_column("w").alter()
    for found in (scans[0].to_pylist(), read(tokens[0])):
        assert sorted(found, key=lambda row: row["a"]) == expected
    assert scans[1].count() == 10


@pytest.mark.both
def test_a_range_that_is_added_takes_rows(client: Client):
    """Between the others too; keys outside all ranges are still refused."""
    table = client.table("t")
    before, tokens = table.current_timestamp(), table.scan_tokens()
    alterer = client.new_table_alterer(table)
    alterer.add_range_partition({"b": 150}, {"b": 160}, upper_bound_type="inclusive")
    alterer.add_range_partition(upper_bound=0)
    table = alterer.alter()
    assert [table.partition_schema.describe_range(i) for i in range(4)] == [
        "b: [-∞, 0)", "b: [0, 50)", "b: [50, 100)", "b: [150, 161)",
    ]  # fmt: skip
    table.insert([{"a": a, "b": b} for a in (1, 2) for b in (-5, 160)])
    with pytest.raises(kudulite.KuduliteError, match="no range partition covers"):
        table.insert([{"a": 1, "b": 161}])
    assert len(every_reading(table)) == 24
    assert len(every_reading(table, before)) == 20
    assert sum(b.num_rows for token in tokens for b in token.open()) == 20
    for lower, upper in ((90, 120), (0, 50), (None, None)):
        with pytest.raises(SchemaError, match="table 't': range partitions .* overlap"):
            client.new_table_alterer(table).add_range_partition(lower, upper).alter()


@pytest.mark.both
def test_a_range_is_dropped_with_its_rows(client: Client):
    """They are gone now and stay in the past; one that never had rows leaves nothing behind."""
    table = client.table("t")
    before = every_reading(table)
    moment = table.current_timestamp()
    table = client.new_table_alterer(table).add_range_partition(200, 300).alter()
    tablets = table.tablet_count
    table = client.new_table_alterer(table).drop_range_partition(200, 300).alter()
    assert (tablets, table.tablet_count) == (6, 4)
    assert table._store.newest().dropped == ()
    table.delete([{"a": i, "b": 5 * i} for i in range(5)])
    table = client.new_table_alterer(table).drop_range_partition(0, 50).alter()
    assert every_reading(table) == before[10:]
    assert every_reading(table, moment) == before
    with pytest.raises(SchemaError, match="no range partition to drop"):
        client.new_table_alterer(table).drop_range_partition(0, 50).alter()


def test_an_unbounded_range_is_replaced_in_one_step(core: CoreTables):
    """As kudu-python programs do that make their ranges later."""
    columns = [kudulite.column("k", kudulite.int64)]
    part = kudulite.Partitioning().set_range_partition_columns(["k"])
    client = core.client()
    table = client.create_table("t", kudulite.schema(columns, "k"), part)
    alterer = client.new_table_alterer(table).drop_range_partition()
    table = alterer.add_range_partition({"k": 0}, {"k": 100}).alter()
    table.insert([{"k": 99}])
    with pytest.raises(SchemaError, match="cannot drop the last range partition"):
        client.new_table_alterer(table).drop_range_partition(0, 100).alter()


def test_a_write_that_was_prepared_before_is_refused(client: Client):
    """Also when nothing but a default changed: its inserts may have used it."""
    table = client.table("t")
    row = {"a": 1, "b": 1, "v": "x", "n": 1}
    batch = pa.RecordBatch.from_pylist([row], table.arrow_schema)
    write = table.new_bulk_write()
    staged = write.stage([batch])
    alterer = client.new_table_alterer(table)
    alterer.alter_column("n").default(8)
    alterer.alter()
    with pytest.raises(ConflictError, match="the schema was altered during a write"):
        write.commit([staged])
    write.abort()


@pytest.mark.both
def test_writes_that_were_prepared_before_only_nullable_columns_were_added(client: Client):
    """They commit: of the added columns they say nothing, so new rows show NULL, old ones stay."""
    table = client.table("t")
    rows = [{"a": 0, "b": 0, "v": "x"}, {"a": 50, "b": 1, "v": "y"}]
    batch = pa.Table.from_pylist(rows, pa.schema([("a", "int32"), ("b", "int32"), ("v", "string")]))
    writes = {
        "upsert": table.new_bulk_write(columns=["a", "b", "v"]),
        "mixed": table.new_bulk_write(columns=["a", "b", "v"], operation_column="op"),
    }
    operations = pa.array(["upsert"] * 2)
    staged = {
        name: write.stage([batch if name == "upsert" else batch.append_column("op", operations)])
        for name, write in writes.items()
    }
    alterer = client.new_table_alterer(table)
    alterer.add_column("late", kudulite.int32)
    alterer.alter()
    table.update([{"a": 0, "b": 0, "late": 5}])
    table.insert([{"a": 50, "b": 1, "late": 6}])
    for name, write in writes.items():
        write.commit([staged[name]])
    found = {row["a"]: (row["v"], row["late"]) for row in every_reading(table)}
    assert (found[0], found[50], found[1]) == (("x", 5), ("y", 6), ("v1", None))


@pytest.mark.parametrize("options", [{"nullable": False, "default": 1}, {"default": 1}])
def test_writes_that_were_prepared_before_a_column_with_a_default(client: Client, options):
    """They are refused: an insert under the new schema would store the default."""
    table = client.table("t")
    write = table.new_bulk_write(columns=["a", "b", "v"])
    alterer = client.new_table_alterer(table)
    alterer.add_column("late", kudulite.int32, **options)
    alterer.alter()
    with pytest.raises(ConflictError, match="the schema was altered during a write"):
        write.commit([])
    write.abort()


def test_a_longer_history_begins_when_it_is_asked_for(core: CoreTables):
    """History before the mark may have been removed already."""
    clock = ManualClock()
    client = core.client(clock=clock)
    table = client.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    table.insert([{"k": 1}])
    clock.microseconds += 10_000_000
    middle = table.insert([{"k": 2}]).timestamp
    clock.microseconds += 10_000_000
    table.insert([{"k": 3}])
    table = client.new_table_alterer(table).set_history_retention(15).alter()
    assert table.scan(at=middle).count() == 2
    clock.microseconds += 10_000_000
    table = client.new_table_alterer(table).set_history_retention(3600).alter()
    with pytest.raises(TimestampError, match="before the ancient history mark"):
        table.scan(at=middle)
    clock.microseconds += 10_000_000
    assert table.scan(at=clock.microseconds - 20_000_000).count() == 3


def test_owner_and_comment_are_texts_of_the_table(client: Client):
    """Given at creation or altered, kept by other alterations, renames and both copies."""
    schema = pa.schema([("k", pa.int64())])
    made = client.create_table("o", schema, primary_key="k", owner="ada", comment="of tests")
    assert (made.owner, made.comment) == ("ada", "of tests")
    plain = client.table("t")
    assert (plain.owner, plain.comment) == ("", "")
    alterer = client.new_table_alterer(plain)
    plain = alterer.set_owner("bob").set_comment("ä" * 128).drop_column("n").alter()
    assert (plain.owner, plain.comment) == ("bob", "ä" * 128)
    renamed = client.new_table_alterer(made).set_comment("").rename("p").alter()
    renamed.insert([{"k": 1}])
    altered(client, "p", lambda a: a.add_column("v", "int8")).compact()
    assert (renamed.owner, renamed.comment) == ("ada", "")
    for with_past in (False, True):
        place = client.root / f"copy-{with_past}"
        plain.copy_to(place, with_past=with_past)
        copied = kudulite.open_table(place)
        assert (copied.owner, copied.comment) == ("bob", "ä" * 128)
    with pytest.raises(SchemaError, match="owner '': expected a name"):
        client.create_table("q", schema, primary_key="k", owner="")
    assert not client.table_exists("q")


WRONG = [
    (lambda a: a.add_column("v", "int8"), SchemaError, "the column already exists: 'v'"),
    (lambda a: a.add_column("x", "int8", False), SchemaError, "needs a default"),
    (lambda a: a.add_column("x"), SchemaError, "column 'x' has no type"),
    (lambda a: a.add_column("x", "int8", default=300), SchemaError, "column 'x': 300"),
    (lambda a: a.add_column("x", "decimal"), SchemaError, "column 'x': decimal needs a precision"),
    (lambda a: a.add_column("x", "varchar"), SchemaError, "column 'x': varchar needs a length"),
    (lambda a: a.add_column("x", "int32").precision(9), SchemaError, "precision 9: int32 has no"),
    (lambda a: a.add_column("x", "varchar(3)").scale(2), SchemaError, "varchar.3. has no scale"),
    (lambda a: a.add_column("x", "decimal").precision(4).length(2), SchemaError, "length 2: dec"),
    (lambda a: a.add_column("x", "decimal(4, 1)").scale(2), SchemaError, "scale 2: the type dec"),
    (lambda a: a.add_column("x", "int8").rename("y"), NotSupportedError, "rename and remove_def"),
    (lambda a: a.add_column("x", "int8").remove_default(), NotSupportedError, "remove_default are"),
    (lambda a: a.drop_column("a"), SchemaError, "cannot remove a key column: 'a'"),
    (lambda a: a.drop_column("x"), ColumnNotFoundError, "no column 'x'"),
    (lambda a: a.alter_column("x", "y"), ColumnNotFoundError, "no column 'x'"),
    (lambda a: a.alter_column("v", "b"), SchemaError, "cannot rename 'v': the column already"),
    (lambda a: a.alter_column("v"), UsageError, "no alter steps provided"),
    (lambda a: a.alter_column("v").type("int8"), NotSupportedError, "its type cannot be altered"),
    (lambda a: a.alter_column("v").nullable(False), NotSupportedError, "its nullable cannot"),
    (lambda a: a.alter_column("v").encoding("rle"), SchemaError, "invalid encoding"),
    (lambda a: a.set_history_retention(-1), UsageError, "history of -1 seconds: give a number"),
    (lambda a: a.add_range_partition((1, 2)), SchemaError, "the range columns are b"),
    (lambda a: a.add_range_partition(1, 2, 0), OptionError, "range bound type 0; known: exclusive"),
    (lambda a: a.add_range_partition(1, 2, "In"), OptionError, "type 'In'; known: exclusive"),
    (lambda a: a.add_range_partition({"a": 1}), SchemaError, "names column 'a'; range columns are"),
    (lambda a: a, UsageError, "no alter steps provided"),
    (lambda a: a.set_owner(""), SchemaError, "owner '': expected a name"),
    (lambda a: a.set_owner(None), SchemaError, "owner None: expected a name"),
    (lambda a: a.set_owner("ä" * 65), SchemaError, "ä'…: expected text of at most 128 bytes"),
    (lambda a: a.set_comment(None), SchemaError, "comment None: expected text of at most 256"),
    (lambda a: a.set_comment("x" * 257), SchemaError, "x'…: expected text of at most 256 bytes"),
    (lambda a: a.set_comment("\ud800"), SchemaError, "comment .*: expected text .* of UTF-8"),
    (lambda a: a.rename("a/b"), SchemaError, "table name 'a/b'"),
]


@pytest.mark.parametrize(("step", "kind", "problem"), WRONG, ids=[p for *_, p in WRONG])
def test_a_wrong_step_changes_nothing(step, kind, problem, client: Client):
    """Nor do the right steps before it."""
    table = client.table("t")
    before = table.version, table.schema
    alterer = client.new_table_alterer(table)
    if kind is not UsageError:
        alterer.drop_column("n")
    with pytest.raises(kind, match=problem) as caught:
        step(alterer)
        alterer.alter()
    assert isinstance(caught.value, KuduliteError)
    assert (table.version, table.schema) == before
    assert len(list((table.path / "tablet").iterdir())) == table.tablet_count


def test_a_name_that_is_taken_is_refused_after_the_steps(client: Client):
    """The table keeps its name."""
    table = client.table("t")
    client.create_table("u", pa.schema([("k", pa.int64())]), primary_key="k")
    with pytest.raises(TableExistsError, match="cannot rename 't': 'u' is in"):
        client.new_table_alterer(table).rename("u").alter()
    assert client.list_tables() == ["t", "u"]


@tiered(("seed", "steps"), [(0, 8), (0, 20), (1, 20), (2, 20)], quick=1)
def test_random_alterations_between_writes(client: Client, seed: int, steps: int):
    """Rows by column id, in a dictionary, are what the table shows now and at every past moment.

    A read has the columns of its moment.
    """
    rng = random.Random(seed)
    table = client.table("t")
    rows: dict[tuple, dict[int, object]] = {}  # cells by column id; one that is absent: default
    for row in table.scan().to_pylist():
        cells = {table.schema[name].id: value for name, value in row.items()}
        rows[row["a"], row["b"]] = cells
    moments = []
    for number in range(steps):
        choice = rng.choice(["add", "drop", "rename", "default", "write", "write", "write"])
        values = [column.name for column in table.schema.value_columns]
        alterer = client.new_table_alterer(table)
        if choice == "add":
            name = rng.choice([n for n in "pqrsv" if n not in table.schema] or [f"z{number}"])
            alterer.add_column(name, kudulite.int64, default=rng.choice([None, number]))
            table = alterer.alter()
        elif choice == "drop" and values:
            table = alterer.drop_column(rng.choice(values)).alter()
        elif choice == "rename" and values:
            name = rng.choice([n for n in "pqrsv" if n not in table.schema] or [f"y{number}"])
            alterer.alter_column(rng.choice(values), rename_to=name)
            table = alterer.alter()
        elif choice == "default" and "n" in table.schema:
            alterer.alter_column("n").default(number)
            table = alterer.alter()
        elif choice == "write":
            write_random(rng, table, rows)
        past = {key: dict(cells) for key, cells in rows.items()}
        moments.append((table.current_timestamp(), past, table.schema))
    moments.append((None, rows, table.schema))
    for at, past, schema in rng.sample(moments, 2) + moments[-1:]:
        expected = sorted(past.items())
        found = every_reading(table, at)
        assert found == [shown(schema, cells) for _, cells in expected]


def write_random(rng: random.Random, table: Table, rows: dict) -> None:
    """Delete a row, and upsert three with random columns, in the table and the model."""
    gone = rng.choice(sorted(rows))
    is_session = rng.random() < 0.7  # its rows stay in the log and memory
    session = kudulite.Session() if is_session else None

    def apply(operation: str, row: dict) -> None:
        if session is None:
            getattr(table, operation)([row])
        else:
            session.apply(getattr(table, f"new_{operation}")(row))

    apply("delete", {"a": gone[0], "b": gone[1]})
    del rows[gone]
    values = table.schema.value_columns
    columns = rng.sample(values, rng.randint(0, len(values)))
    for _ in range(3):
        key = rng.randrange(5), rng.randrange(100)
        row = {"a": key[0], "b": key[1]}
        for column in columns:
            row[column.name] = rng.randrange(9)
            if str(column.type) == "string":
                row[column.name] = str(row[column.name])
        apply("upsert", row)
        if key not in rows:
            rows[key] = {column.id: column.write_default for column in values}
        rows[key] |= {table.schema[name].id: value for name, value in row.items()}
    if session is not None:
        session.flush()


def shown(schema: Schema, cells: dict) -> dict:
    """Cells by id as a row of a schema."""
    return {column.name: cells.get(column.id, column.read_default) for column in schema}


@pytest.mark.both
def test_rows_that_are_not_flushed_are_altered_too(client: Client):
    """They are a past that stays readable, also when their range is dropped."""
    table = client.table("t")
    table = client.new_table_alterer(table).add_range_partition(200, 300).alter()
    session = kudulite.Session()
    session.apply(table.new_insert({"a": 1, "b": 250, "v": "kept"}))
    session.apply(table.new_update({"a": 0, "b": 0, "v": "changed"}))
    session.flush()
    moment = table.current_timestamp()
    alterer = client.new_table_alterer(table).drop_column("n").drop_range_partition(200, 300)
    alterer.alter_column("v", "w")
    table = alterer.alter()
    shown = {(row["a"], row["b"]): row["v"] for row in every_reading(table, moment)}
    assert {row["n"] for row in every_reading(table, moment)} == {7}
    assert (shown[1, 250], shown[0, 0], shown[3, 15]) == ("kept", "changed", "changed")
    assert len(every_reading(table)) == len(shown) - 1
