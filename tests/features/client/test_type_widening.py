"""Column types that are widened: files, deltas and the past are read right through it."""

import random
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, NotSupportedError
from kudulite.kudu.scanner import Scanner
from kudulite.model.types import ColumnType, is_widened, parse_type, widened
from tests.support.tables.core_tables import CoreTables, stored
from tests.support.tables.readings import every_reading, rows_of_tokens
from tests.support.tiers import tiered

# (old type, new type, values of the old one, values of the new one alone)
WIDENINGS = [
    ("int8", "int16", [-128, 127, 0, None], [-129, 32767]),
    ("int8", "int64", [-128, 127, 0, None], [1 << 62, -(1 << 63)]),
    ("int16", "int32", [-(1 << 15), 5, None], [1 << 15, -(1 << 31)]),
    ("int32", "int64", [-(1 << 31), (1 << 31) - 1, None], [1 << 31, (1 << 63) - 1]),
    ("float", "double", [0.1, -0.0, 1.5, None], [0.1, 1e300]),
    (
        "decimal(4, 2)",
        "decimal(12, 2)",
        [Decimal("-99.99"), Decimal("0.01"), None],
        [Decimal("100.00"), Decimal("-9999999999.99")],
    ),
    (
        "decimal(18, 3)",
        "decimal(38, 3)",
        [Decimal(10**15 - 1), Decimal("-0.001"), None],
        [Decimal(10**15), Decimal(-(10**35) + 1)],
    ),
    ("varchar(3)", "varchar(5)", ["", "abc", None], ["abcd", "åß∂ƒ©"]),
    ("varchar(3)", "string", ["", "abc", None], ["a" * 1000]),
]
QUICK = WIDENINGS[5::2][:2]  # a decimal and a text; integers are widened by the random test too
IDS = [f"{old} to {new}" for old, new, *_ in WIDENINGS]


def make_table(client: Client, kind: str) -> Table:
    """Table t (k | v, w): two tablets, a column v that will be widened, and w that stays."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", parse_type(kind)),
        kudulite.column("w", kudulite.int8, nullable=False, default=3),
    ]
    return client.create_table("t", kudulite.schema(columns, "k"), hash_partitions=[(["k"], 2)])


def widen(client: Client, new_type: str) -> Table:
    """Table t with v of another type."""
    alterer = client.new_table_alterer(client.table("t"))
    alterer.alter_column("v").type(new_type)
    return alterer.alter()


def as_column(kind: str, value: object) -> object:
    """The value that a column of this type gives back."""
    return value if kind != "float" or value is None else pa.scalar(value, pa.float32()).as_py()


@pytest.mark.both
@tiered(("old", "new", "narrow", "wide"), WIDENINGS, quick=QUICK, ids=IDS)
def test_old_files_and_new_ones_are_read_together(old, new, narrow, wide, core: CoreTables):
    """Base data, REDO and UNDO files and the log, written before and after, at every moment."""
    client = core.client()
    table = make_table(client, old)
    rows: dict[int, object] = {}
    moments: list[tuple[int, dict[int, object]]] = []

    def write(values: list, kind: str) -> None:
        """In bulk, by a session twice, flushed or not, over rows of all ages."""
        number = len(moments)
        for way in range(4):
            keys = [(number + way + i) % 9 for i in range(4)]
            changed = {k: values[(k + way) % len(values)] for k in keys}
            data = [{"k": k, "v": value} for k, value in changed.items()]
            if way % 2:
                session = client.new_session()
                for row in data:
                    session.apply(table.new_upsert(row))
                session.flush()
            else:
                table.upsert(data)
            if way == 2:
                table.flush()
            rows.update({k: as_column(kind, value) for k, value in changed.items()})
            moments.append((table.current_timestamp(), dict(rows)))

    write(narrow, old)
    table = widen(client, new)
    assert str(table.schema["v"].type) == new
    assert table.arrow_schema.field("v").type == parse_type(new).arrow
    write(narrow + wide, new)
    for at, past in [*moments, (None, rows)]:
        expected = [(k, v, 3) for k, v in sorted(past.items())]
        assert stored(table, at) == expected
        assert stored(core.client().table("t"), at) == expected
    for at, past in (moments[1], moments[3], moments[-1], (None, rows)):
        found = every_reading(table, at)
        assert [row["v"] for row in found] == [v for _, v in sorted(past.items())]
    for value in wide:  # statistics and constants of the old type exclude nothing
        expected = sorted(k for k, v in rows.items() if v == value)
        found = table.scan(["k"], table["v"] == value, ordered=True).to_pylist()
        assert [row["k"] for row in found] == expected


@tiered(("old", "new", "narrow", "wide"), WIDENINGS, quick=QUICK, ids=IDS)
def test_scans_that_were_planned_before_keep_their_type(old, new, narrow, wide, core: CoreTables):
    """At their moment every value was one of it, whatever base data holds by now."""
    client = core.client()
    table = make_table(client, old)
    table.upsert([{"k": k, "v": narrow[k % len(narrow)]} for k in range(8)])
    expected, kind = stored(table), parse_type(old).arrow
    where = [table["v"].is_not_null(), table["k"] >= 0]
    scans = [table.scan(), table.scan(ordered=True), table.scan(where=where)]
    tokens = [table.scan_tokens(), table.scan_tokens(ordered=True)]
    scanner = Scanner(table).set_snapshot(table.current_timestamp())
    between = table.current_timestamp()
    table.update([{"k": k, "v": narrow[(k + 1) % len(narrow)]} for k in range(8)])
    changes = [table.changes(between, images="both"), table.changes(between, where=table["k"] < 4)]
    told = [change.to_pylist() for change in changes]
    change_tokens = table.change_tokens(between, images="both")
    table = widen(client, new)
    session = client.new_session()
    for k in range(12):  # new images of old rows, with UNDO, and rows that were not there
        session.apply(table.new_upsert({"k": k, "v": wide[k % len(wide)]}))
    session.flush()
    table.flush()
    table.upsert([{"k": k, "v": wide[k % len(wide)]} for k in range(5, 20)])
    for scan in scans[:2]:
        found = scan.to_arrow()
        assert found.schema.field("v").type == kind
        assert sorted(found.to_pylist(), key=lambda row: row["k"]) == [
            {"k": k, "v": v, "w": w} for k, v, w in expected
        ]
    assert scans[2].count() == sum(v is not None for _, v, _ in expected)
    assert scans[2].to_arrow().schema.field("v").type == kind
    for part in tokens:
        batches = [batch for token in part for batch in token.open()]
        assert {batch.schema.field("v").type for batch in batches} == {kind}
        assert sorted(row["k"] for row in rows_of_tokens(part)) == [k for k, *_ in expected]
        assert str(part[0]._read().columns[1].type) == old
    assert sorted(scanner.open().read_all_tuples()) == expected
    for change, rows in zip(changes, told, strict=True):
        assert change.to_arrow().schema.field("v").type == kind
        assert change.to_pylist() == rows
    batches = [batch for token in change_tokens for batch in token.open()]
    assert pa.Table.from_batches(batches, changes[0].schema).num_rows == 16
    assert {row[1] for row in stored(table)} <= set(wide)


@pytest.mark.both
def test_a_type_is_widened_together_with_other_changes(core: CoreTables):
    """In one step of one alteration, or in several; storage attributes and the comment stay."""
    client = core.client()
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("v", "int8", encoding="rle", compression="zstd", default=7, comment="c"),
        kudulite.column("d", "decimal(5, 2)"),
        kudulite.column("s", "varchar(4)"),
    ]
    table = client.create_table("t", kudulite.schema(columns, "k"))
    table.insert([{"k": 1}])
    alterer = client.new_table_alterer(table)
    alterer.alter_column("v", "x").type("int16").default(1000)
    alterer.alter_column("x").type("int32")
    alterer.alter_column("d").precision(9)
    alterer.alter_column("s").length(6)
    table = alterer.alter()
    column = table.schema["x"]
    assert (column.encoding, column.compression, column.comment) == ("rle", "zstd", "c")
    assert [str(c.type) for c in table.schema.value_columns] == [
        "int32", "decimal(9, 2)", "varchar(6)",
    ]  # fmt: skip
    table.insert([{"k": 2}])
    table.insert([{"k": 3, "d": Decimal("1234567.89"), "s": "abcdef"}])
    assert [row["x"] for row in every_reading(table)] == [7, 1000, 1000]
    alterer = client.new_table_alterer(table)
    alterer.alter_column("d").type(kudulite.decimal).precision(20)
    alterer.alter_column("s").type(kudulite.string)
    table = alterer.alter()
    assert [str(c.type) for c in table.schema.value_columns] == [
        "int32",
        "decimal(20, 2)",
        "string",
    ]
    assert every_reading(table)[2]["d"] == Decimal("1234567.89")


@pytest.mark.both
def test_an_added_column_that_is_widened_shows_its_default(core: CoreTables):
    """In rows from before it was there, which no file holds it for."""
    client = core.client()
    schema = pa.schema([("k", pa.int64())])
    table = client.create_table("t", schema, primary_key="k")
    table.insert([{"k": 1}])
    for name, kind, default in (("v", "int8", -5), ("d", "decimal(3, 1)", Decimal("1.5"))):
        alterer = client.new_table_alterer(table)
        alterer.add_column(name, kind, default=default)
        table = alterer.alter()
    table.insert([{"k": 2}])
    alterer = client.new_table_alterer(table)
    alterer.alter_column("v").type("int64")
    alterer.alter_column("d").precision(30)
    table = alterer.alter()
    table.insert([{"k": 3}])
    rows = every_reading(table)
    assert {(row["v"], row["d"]) for row in rows} == {(-5, Decimal("1.5"))}


def test_writes_that_were_prepared_before_are_refused(core: CoreTables):
    """As by any alteration; rows of a session are written in the new type."""
    client = core.client()
    table = make_table(client, "int8")
    write = table.new_bulk_write()
    row = {"k": 1, "v": 1, "w": 1}
    staged = write.stage([pa.RecordBatch.from_pylist([row], table.arrow_schema)])
    session = client.new_session()
    session.apply(table.new_upsert({"k": 2, "v": 2}))
    table = widen(client, "int32")
    with pytest.raises(ConflictError, match="the schema was altered during a write"):
        write.commit([staged])
    write.abort()
    session.flush()
    session.apply(table.new_upsert({"k": 3, "v": 70_000}))
    session.flush()
    assert stored(table) == [(2, 2, 3), (3, 70_000, 3)]


REFUSED = [
    ("int32", "int8"), ("int32", "double"), ("double", "float"), ("string", "varchar(9)"),
    ("varchar(5)", "varchar(4)"), ("decimal(5, 2)", "decimal(4, 2)"), ("int8", "string"),
    ("decimal(5, 2)", "decimal(9, 3)"), ("decimal(5, 2)", "double"), ("string", "binary"),
    ("date", "unixtime_micros"), ("bool", "int8"), ("timestamp_ntz", "unixtime_micros"),
    ("int32", "decimal(20, 0)"), ("binary", "string"), ("varchar(5)", "binary"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), REFUSED, ids=[f"{old} to {new}" for old, new in REFUSED])
def test_other_changes_of_a_type_are_refused(old: str, new: str, core: CoreTables):
    """The message says from what to what, and what to do."""
    client = core.client()
    make_table(client, old)
    with pytest.raises(NotSupportedError, match=r"table 't'.*its type cannot be altered from"):
        widen(client, new)
    assert not parse_type(old).can_widen_to(parse_type(new))


def test_the_type_of_a_key_column_is_fixed(core: CoreTables):
    """The order of encoded keys depends on it."""
    client = core.client()
    table = make_table(client, "int8")
    alterer = client.new_table_alterer(table)
    alterer.alter_column("k").type("int64")
    with pytest.raises(NotSupportedError, match="'k': its type cannot be altered: it is part of"):
        alterer.alter()


def test_stored_types_are_those_that_a_column_can_have_had():
    """As types of columns and as Arrow types of files; widening keeps each value."""
    known = [parse_type(text) for text in {t for old, new, *_ in WIDENINGS for t in (old, new)}]
    for old in known:
        assert old.can_widen_to(old)
        for new in known:
            if old.can_widen_to(new):
                assert is_widened(old.arrow, new.arrow)
    for old, new, narrow, _ in WIDENINGS:
        before, after = parse_type(old), parse_type(new)
        assert before.can_widen_to(after)
        assert not after.can_widen_to(before)
        values = pa.array(narrow, before.arrow)
        assert widened(values, after.arrow).to_pylist() == values.to_pylist()
        if before.arrow != after.arrow:
            with pytest.raises(ConflictError, match="altered from .* while it was read"):
                widened(pa.array(narrow, after.arrow), before.arrow)


@tiered(("seed", "steps"), [(0, 10), (0, 25), (1, 25), (2, 25)], quick=1)
def test_random_widenings_between_writes(core: CoreTables, seed: int, steps: int):
    """Values of a dictionary, now and at every past moment, through every widening of integers."""
    rng = random.Random(seed)
    client = core.client(small_write_rows_max=rng.choice([0, 100]))
    table = make_table(client, "int8")
    rows: dict[int, int | None] = {}
    bits, moments = 8, []
    for _ in range(steps):
        choice = rng.choice(["write", "write", "write", "session", "delete", "flush", "widen"])
        limit = 1 << (bits - 1)
        keys = rng.sample(range(12), 4)
        if choice in ("write", "session"):
            changed = {k: rng.choice([None, -limit, limit - 1, rng.randrange(limit)]) for k in keys}
            data = [{"k": k, "v": v} for k, v in changed.items()]
            if choice == "write":
                table.upsert(data)
            else:
                session = client.new_session()
                for row in data:
                    session.apply(table.new_upsert(row))
                session.flush()
            rows |= changed
        elif choice == "delete":
            table.delete_ignore([{"k": k} for k in keys])
            rows = {k: v for k, v in rows.items() if k not in keys}
        elif choice == "flush":
            table.flush()
        elif bits < 64:
            bits = rng.choice([b for b in (16, 32, 64) if b > bits])
            table = widen(client, f"int{bits}")
        moments.append((table.current_timestamp(), dict(rows)))
    for at, past in moments:
        assert stored(table, at) == [(k, v, 3) for k, v in sorted(past.items())], (seed, at)
    for at, past in [*rng.sample(moments, 2), (None, rows)]:
        assert [row["v"] for row in every_reading(table, at)] == [
            v for _, v in sorted(past.items())
        ]


def test_a_type_is_compared_by_its_parameters():
    """A varchar may grow by letters alone, a decimal by digits alone."""
    assert ColumnType("varchar", length=3).can_widen_to(kudulite.string)
    assert kudulite.decimal(5, 2).can_widen_to(kudulite.decimal(6, 2))
    assert not kudulite.decimal(5, 2).can_widen_to(kudulite.decimal(6, 1))
    assert not kudulite.int64.can_widen_to(kudulite.unixtime_micros)
