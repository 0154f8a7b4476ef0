"""Bad input: each a clear error naming the table, the column and the value; the table as it was."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import (
    ColumnNotFoundError,
    KuduliteError,
    OptionError,
    RowError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    UsageError,
)
from tests.support.tables.core_tables import CoreTables, files_below, stored


@pytest.fixture
def client(core: CoreTables) -> Client:
    """A client of its own."""
    return core.client()


@pytest.fixture
def table(client: Client) -> Table:
    """Keys 0 to 99; every kind of value column; one row."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("n", kudulite.int16, nullable=False),
        kudulite.column("s", "varchar(3)"),
        kudulite.column("d", "decimal(5, 2)"),
        kudulite.column("ts", kudulite.unixtime_micros),
        kudulite.column("f", kudulite.double),
    ]
    table = client.create_table(
        "metrics",
        kudulite.schema(columns, "k"),
        range_partitions={"columns": ["k"], "bounds": [[0, 100]]},
    )
    table.insert([{"k": 1, "n": 1}])
    return table


def one(**cells) -> list[dict]:
    """One row that is right but for `cells`."""
    return [{"k": 2, "n": 1, **cells}]


def arrow(**columns) -> pa.Table:
    """Two rows as Arrow that are right but for `columns`."""
    return pa.table({"k": pa.array([2, 3]), "n": pa.array([1, 1]), **columns})


NAIVE = datetime.datetime(2020, 1, 1)
WRITES: dict[str, tuple[Callable[[Table], object], type[KuduliteError], str]] = {
    "unknown option": (
        lambda t: t.upsert(one(), snapshotTs=1),
        OptionError,
        "'metrics': unknown option 'snapshotTs' .*known: application_id, .*ignore_null",
    ),
    "unknown option of apply": (
        lambda t: t.apply(one(op="U"), ordering="n"),
        OptionError,
        "'metrics': unknown option 'ordering'",
    ),
    "unknown operation": (
        lambda t: t.new_bulk_write("merge"),
        OptionError,
        "unknown operation 'merge'; known: insert, insert_ignore, upsert",
    ),
    "unknown operation in a cell": (
        lambda t: t.apply(one(op="X")),
        OptionError,
        "'metrics': operation column 'op': unknown operation 'X'; known: insert, .*I, U, D",
    ),
    "no operation in a cell": (
        lambda t: t.apply(one(op=None)),
        RowError,
        "'metrics': operation column 'op' is null in 1 rows",
    ),
    "no operation column": (
        lambda t: t.apply(one()),
        SchemaError,
        "'metrics': batch without operation column 'op'; it has k, n",
    ),
    "unknown column": (
        lambda t: t.upsert(one(host=1)),
        ColumnNotFoundError,
        "'metrics'.*no column 'host'.*k, n, s, d, ts, f",
    ),
    "a column twice": (
        lambda t: t.upsert(pa.table([pa.array([2]), pa.array([2])], names=["k", "k"])),
        SchemaError,
        "'metrics': upsert: column 'k' is given twice",
    ),
    "no key column": (
        lambda t: t.upsert([{"n": 1}]),
        SchemaError,
        r"'metrics': upsert without key column 'k'; the primary key is \(k\), given are: n",
    ),
    "a DataFrame without the key": (
        lambda t: t.upsert(pd.DataFrame({"n": [1]})),
        SchemaError,
        "'metrics': upsert without key column 'k'",
    ),
    "delete without the key": (
        lambda t: t.delete([{"n": 1}]),
        SchemaError,
        "'metrics': delete without key column 'k'",
    ),
    "null key": (
        lambda t: t.upsert([*one(), {"k": None, "n": 2}]),
        RowError,
        r"'metrics': key column 'k': 1 row refused: null .*\(k\) = None; nothing was written",
    ),
    "null in NOT NULL": (
        lambda t: t.upsert(one(n=None)),
        RowError,
        r"'metrics': column 'n': 1 row refused: null in a column that is NOT NULL; \(k\) = 2",
    ),
    "no value for NOT NULL": (
        lambda t: t.upsert([{"k": 2, "s": "a"}]),
        RowError,
        r"'metrics': upsert, column 'n': 1 row refused: no value provided .*\(k\) = 2",
    ),
    "a key twice under insert": (
        lambda t: t.insert([*one(), *one(n=3), {"k": 5, "n": 1}]),
        RowError,
        r"insert: 1 row refused: key already present, by an earlier row of the batch; \(k\) = 2;",
    ),
    "a present key under insert": (
        lambda t: t.insert([*one(), {"k": 1, "n": 1}]),
        RowError,
        r"insert: 1 row refused: key already present; \(k\) = 1",
    ),
    "an absent key under update": (
        lambda t: t.update([{"k": 1, "n": 9}, {"k": 7, "n": 1}]),
        RowError,
        r"update: 1 row refused: key not found; \(k\) = 7",
    ),
    "many absent keys under delete": (
        lambda t: t.delete([{"k": k} for k in range(10, 20)]),
        RowError,
        r"delete: 10 rows refused: key not found; \(k\) = 10, 11, 12, 13, 14, …",
    ),
    "an update of nothing": (
        lambda t: t.update([{"k": 1}]),
        SchemaError,
        "'metrics': update without a column to set: no fields updated; .* n, s, d, ts, f",
    ),
    "a key above every range": (
        lambda t: t.upsert([{"k": 100, "n": 1}]),
        RowError,
        r"'metrics': range columns \(k\): 1 row refused: no range .*\(k\) = 100",
    ),
    "a key below every range": (
        lambda t: t.delete([{"k": -1}]),
        RowError,
        r"no range partition covers the key; \(k\) = -1",
    ),
    "out of range": (
        lambda t: t.upsert(one(n=40_000)),
        SchemaError,
        "'metrics', column 'n': 40000 is no int16: outside -32768..32767",
    ),
    "out of range in Arrow": (
        lambda t: t.upsert(arrow(n=pa.array([1, 40_000]))),
        RowError,
        "'metrics', column 'n': row 1: value 40000 does not fit int16",
    ),
    "a key out of range in Arrow": (
        lambda t: t.upsert(arrow(k=pa.array([1, 1 << 40]))),
        RowError,
        "'metrics', column 'k': row 1: value 1099511627776 does not fit int32",
    ),
    "too long": (
        lambda t: t.upsert(one(s="äöü€")),
        SchemaError,
        r"'metrics', column 's': 'äöü€' is no varchar\(3\): longer than 3",
    ),
    "too long in Arrow": (
        lambda t: t.upsert(arrow(s=["äöü", "äöü€"])),
        RowError,
        r"'metrics', column 's': row 1: value 'äöü€' does not fit varchar\(3\)",
    ),
    "lost digits": (
        lambda t: t.upsert(one(d=Decimal("1.234"))),
        SchemaError,
        r"'metrics', column 'd': Decimal\('1.234'\) is no decimal\(5, 2\)",
    ),
    "too many digits in Arrow": (
        lambda t: t.upsert(arrow(d=[Decimal("1"), Decimal("12345")])),
        RowError,
        r"'metrics', column 'd': row 1: value Decimal\('12345'\) does not fit decimal\(5, 2\)",
    ),
    "another type": (
        lambda t: t.upsert(one(n="x")),
        SchemaError,
        "'metrics', column 'n': 'x' is no int16",
    ),
    "another type in Arrow": (
        lambda t: t.upsert(arrow(n=["1", "2"])),
        SchemaError,
        "'metrics', column 'n': Arrow type string has no exact meaning in int16",
    ),
    "a fraction for an integer": (
        lambda t: t.upsert(pd.DataFrame({"k": [2.5], "n": [1]})),
        RowError,
        "'metrics', column 'k': row 0: value 2.5 does not fit int32",
    ),
    "a time without zone": (
        lambda t: t.upsert(arrow(ts=[NAIVE, NAIVE])),
        SchemaError,
        "'metrics', column 'ts': Arrow type timestamp.us. has no exact meaning in unixtime_micros",
    ),
    "no rows at all": (lambda t: t.upsert(5), SchemaError, "'metrics': cannot read rows from int"),
    "columns of different lengths": (
        lambda t: t.upsert({"k": [2, 3], "n": [1]}),
        SchemaError,
        "'metrics': columns of different lengths",
    ),
    "null ordering": (
        lambda t: t.apply(one(op="U", f=None), ordering_column="f"),
        RowError,
        "'metrics': ordering column 'f' is null in 1 rows",
    ),
    "ordering by a key column": (
        lambda t: t.apply(one(op="U"), ordering_column="k"),
        OptionError,
        "'metrics': .*ordering column 'k' must be a non-key column",
    ),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_bad_write_is_refused_and_changes_nothing(table: Table, case: str):
    """No version, no file, nothing staged, and the error says what to look at."""
    write, error, message = WRITES[case]
    before = table.version, stored(table), files_below(table.path)
    with pytest.raises(error, match=message):
        write(table)
    assert (table.version, stored(table), files_below(table.path)) == before


READS: dict[str, tuple[Callable[[Table], object], type[KuduliteError], str]] = {
    "unknown column as text": (
        lambda t: t.scan(columns="host"),
        ColumnNotFoundError,
        "no column 'host'.*: k, n, s, d, ts, f",
    ),
    "text that is no condition": (
        lambda t: t.scan(where="k + 1 = 2"),
        OptionError,
        "table 'metrics': condition: 'k \\+ 1 = 2' is not supported; possible, joined by AND, OR",
    ),
    "text with an unknown column": (
        lambda t: t.scan(where="host = 1"),
        ColumnNotFoundError,
        "condition: no column 'host' in 'host = 1'; columns: k, n",
    ),
    "a number for a predicate": (
        lambda t: t.scan(where=1),
        OptionError,
        "where: 1 is no predicate; give text as in .*, predicates as in .*, or tuples as in",
    ),
    "an unknown operator of a tuple": (
        lambda t: t.scan(where=[("k", "~", 1)]),
        OptionError,
        r"\('k', '~', 1\) has an unknown operator; known: =, ==, !=, .*, in, not in",
    ),
    "an empty list among lists": (
        lambda t: t.scan(where=[[("k", "=", 1)], []]),
        OptionError,
        "an empty list in a list of lists says nothing",
    ),
    "unknown column": (
        lambda t: t.scan(columns=["k", "host"]),
        ColumnNotFoundError,
        "no column 'host'.*: k, n, s, d, ts, f",
    ),
    "unknown column of a predicate": (
        lambda t: t["host"] == 1,
        ColumnNotFoundError,
        "'metrics' has no column 'host'",
    ),
    "a predicate of another type": (
        lambda t: t.scan(where=[t["n"] == "x"]),
        SchemaError,
        "column 'n': 'x' cannot be compared with int16",
    ),
    "a comparison with None": (
        lambda t: t["n"] >= None,
        UsageError,
        "column 'n': a comparison with None is never true; use is_null",
    ),
    "a negative limit": (lambda t: t.scan(limit=-1), OptionError, "'metrics': limit -1"),
    "a key of two values": (lambda t: t.get((1, 2)), SchemaError, r"\(1, 2\) has 2 values"),
    "a key of another type": (lambda t: t.get("x"), SchemaError, r"'x'.*int32"),
    "a key without its column": (lambda t: t.get({"n": 1}), SchemaError, "without column 'k'"),
    "null among keys": (lambda t: t.get_many([1, None]), RowError, "null in key column 'k'"),
}


@pytest.mark.parametrize("case", READS)
def test_a_bad_read_is_refused(table: Table, case: str):
    """When it is planned, not when its rows are fetched."""
    read, error, message = READS[case]
    with pytest.raises(error, match=message):
        read(table)


def test_one_name_is_one_column(table: Table):
    """Not its letters, which may be columns too."""
    found = table.scan(columns="ts", limit=1).to_arrow()
    assert (found.schema.names, found.num_rows) == (["ts"], 1)


def test_row_errors_carry_reason_count_and_keys(table: Table):
    """For programs; the message is for people."""
    with pytest.raises(RowError) as caught:
        table.update([{"k": k, "n": 1} for k in (9, 8, 7)])
    assert caught.value.reason == RowError.REASON_NOT_FOUND
    assert (caught.value.row_count, caught.value.keys) == (3, ((9,), (8,), (7,)))


def test_wrong_paths_say_what_is_there(client: Client, table: Table, tmp_path: Path):
    """Nothing, a folder of tables, some other folder, a file."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-0.parquet").write_bytes(b"x")
    cases = {
        tmp_path / "gone": "the folder does not exist; create the table first",
        client.root: "expected a folder manifest/ with versions, found metrics",
        tmp_path / "other": "expected a folder .*, found part-0.parquet",
        tmp_path / "other" / "part-0.parquet": "it is a file",
    }
    for path, message in cases.items():
        with pytest.raises(TableNotFoundError, match=f"{path} is not a kudulite table: {message}"):
            kudulite.open_table(path)
    with pytest.raises(TableNotFoundError, match="no table 'gone' in .*; tables: metrics"):
        client.table("gone")
    with pytest.raises(StorageError, match="part-0.parquet"):
        kudulite.connect(tmp_path / "other" / "part-0.parquet")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a\0b", "x" * 201, 5])
def test_bad_table_names_are_refused(client: Client, name):
    """Before anything is made."""
    with pytest.raises(SchemaError, match="a name has 1 to 200 bytes"):
        client.create_table(name, pa.schema([("k", pa.int32())]), primary_key="k")
    with pytest.raises(SchemaError, match="table name"):
        client.table(name)


@pytest.mark.parametrize(
    ("schema", "options", "error", "message"),
    [
        ([("a", pa.int32())], {}, SchemaError, r"'t2': an Arrow schema needs primary_key"),
        ([("a", pa.int32())], {"primary_key": "b"}, SchemaError, "'b' is not in the schema"),
        ([("a", pa.float64())], {"primary_key": "a"}, SchemaError, "'a': double may not be part"),
        (
            [("a", pa.int32()), ("l", pa.list_(pa.uint8()))],
            {"primary_key": "a"},
            SchemaError,
            "'t2', column 'l': Arrow type uint8 has no column type",
        ),
        (
            [("a", pa.int32()), ("b", pa.int32())],
            {"primary_key": "a", "hash_partitions": [(["b"], 2)]},
            SchemaError,
            "'b', which is not in the primary key",
        ),
        (
            [("a", pa.int32())],
            {"primary_key": "a", "range_partitions": {"column": ["a"]}},
            SchemaError,
            "expected 'columns' and 'bounds'",
        ),
        (
            [("a", pa.int32())],
            {"primary_key": "a", "range_partitions": {"columns": ["a"], "bounds": [["x", None]]}},
            SchemaError,
            "column 'a': 'x' is no int32",
        ),
    ],
)
def test_a_wrong_table_definition_makes_nothing(client: Client, schema, options, error, message):
    """Not even a folder."""
    with pytest.raises(error, match=message):
        client.create_table("t2", pa.schema(schema), **options)
    assert list(client.root.iterdir()) == []


def test_a_table_is_not_created_twice(client: Client, table: Table):
    """And a rename does not take over one either."""
    client.create_table("t2", table.schema)
    with pytest.raises(TableExistsError, match="'t2'"):
        client.create_table("t2", table.schema)
    with pytest.raises(TableExistsError, match="cannot rename 'metrics': 't2'"):
        client.rename_table("metrics", "t2")
    assert client.list_tables() == ["metrics", "t2"]


def test_a_row_error_of_a_key_outside_of_the_years_of_python(core: CoreTables):
    """Its microseconds are shown; 2^63 - 1 of them are in the year 294246."""
    table = core.client().create_table(
        "t", pa.schema([("ts", pa.timestamp("us", "UTC"))]), primary_key="ts"
    )
    far = pa.table({"ts": pa.array([2**63 - 1], pa.int64()).cast(pa.timestamp("us", "UTC"))})
    table.insert(far)
    with pytest.raises(RowError, match="9223372036854775807") as caught:
        table.insert(far)
    assert caught.value.keys == ((2**63 - 1,),)


def test_a_row_error_shows_the_beginning_of_large_cells(core: CoreTables):
    """In a session, too."""
    table = core.client().create_table(
        "t", pa.schema([("k", pa.int64()), ("w", pa.binary())]), primary_key="k"
    )
    session = core.client().new_session()
    for _ in range(2):
        session.apply(table.new_insert({"k": 1, "w": bytes(1 << 20)}))
    with pytest.raises(RowError) as caught:
        session.flush()
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "use",
    [
        lambda client, text: kudulite.connect(client.root / text),
        lambda client, text: client.create_table(
            text, pa.schema([("k", pa.int64())]), primary_key="k"
        ),
        lambda client, text: client.table("t").tag(text),
        lambda client, text: client.table("t").upsert([{"k": 1}], message=text),
    ],
)
def test_a_text_without_a_utf8_form_is_refused(core: CoreTables, use):
    """A lone surrogate, as os.fsdecode makes it of a name that is not UTF-8."""
    client = core.client()
    client.create_table("t", pa.schema([("k", pa.int64())]), primary_key="k")
    with pytest.raises(UsageError):
        use(client, "a\udcff")


def test_a_key_that_is_twice_in_a_batch_is_told_from_one_in_the_table(core):
    """Few rows and many: the message says which of the two it is."""
    client = core.client()
    table = client.create_table("twice", pa.schema([("k", pa.int64())]), primary_key="k")
    table.insert([{"k": 5}])
    for batch in ([1, 2, 1], [*range(10, 9_000), 12]):
        with pytest.raises(RowError, match="key already present, by an earlier row of the batch; "):
            table.insert(pa.table({"k": batch}))
    for batch in ([1, 5], [*range(10, 9_000), 5]):
        with pytest.raises(RowError, match="key already present; "):
            table.insert(pa.table({"k": batch}))
