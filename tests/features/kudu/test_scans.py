"""Scanners, predicates, scan tokens and frames of kudu-python's programs."""

import datetime
from decimal import Decimal

import numpy as np
import pytest

import kudulite.kudu as kudu
from kudulite.kudu.client import Partitioning

UTC = datetime.UTC
START = datetime.datetime(2016, 1, 1, tzinfo=UTC)
ROWS = [
    (i, 2 * i, f"hello_{i}" if i % 2 == 0 else None, START + datetime.timedelta(seconds=i))
    for i in range(100)
]
TYPE_ROWS = [
    (1, START, Decimal("111.11"), "Test One", True, 1.7e308, 127, "Ιορδανία".encode(), "Test One",
     datetime.date(1970, 1, 1), 3.402823),
    (2, START + datetime.timedelta(days=9), Decimal("0.99"), "测试二", False, 200.1, -1,
     "Иордания".encode(), "测试二", datetime.date(2020, 1, 1), -150.2),
]  # fmt: skip


@pytest.fixture
def table(client: kudu.Client) -> kudu.Table:
    """ROWS in two hash partitions."""
    builder = kudu.schema_builder()
    builder.add_column("key", kudu.int32, nullable=False)
    builder.add_column("int_val", kudu.int32)
    builder.add_column("string_val", kudu.string)
    builder.add_column("at", kudu.unixtime_micros)
    builder.set_primary_keys(["key"])
    by_hash = Partitioning().add_hash_partitions(["key"], 2)
    table = client.create_table("t", builder.build(), by_hash)
    session = client.new_session()
    for row in ROWS:
        session.apply(table.new_insert(row))
    session.flush()
    return table


@pytest.fixture
def type_table(client: kudu.Client) -> kudu.Table:
    """TYPE_ROWS: a column of each type, hash and range partitions."""
    builder = kudu.schema_builder()
    builder.add_column("key").type(kudu.int64).nullable(False)
    builder.add_column("unixtime_micros_val", type_=kudu.unixtime_micros, nullable=False)
    builder.add_column("decimal_val", type_=kudu.decimal, precision=5, scale=2)
    builder.add_column("string_val", kudu.string, compression=kudu.COMPRESSION_LZ4)
    builder.add_column("bool_val", type_=kudu.bool)
    builder.add_column("double_val", type_=kudu.double)
    builder.add_column("int8_val", type_=kudu.int8)
    builder.add_column("binary_val", "binary", encoding="prefix")
    builder.add_column("varchar_val", type_=kudu.varchar, length=10)
    builder.add_column("date_val", type_=kudu.date)
    builder.add_column("float_val", type_=kudu.float)
    builder.set_primary_keys(["key", "unixtime_micros_val"])
    partitioning = Partitioning().add_hash_partitions(column_names=["key"], num_buckets=3)
    partitioning.set_range_partition_columns(["unixtime_micros_val"])
    partitioning.add_range_partition(
        upper_bound={"unixtime_micros_val": ("2016-01-01", "%Y-%m-%d")},
        upper_bound_type=kudu.EXCLUSIVE_BOUND,
    )
    partitioning.add_range_partition(
        lower_bound={"unixtime_micros_val": datetime.datetime(2016, 1, 1)},
        lower_bound_type="INCLUSIVE",
        upper_bound={"unixtime_micros_val": datetime.datetime(9999, 12, 31)},
    )
    table = client.create_table("types", builder.build(), partitioning)
    session = client.new_session()
    for row in TYPE_ROWS:
        session.apply(table.new_insert(row))
    session.flush()
    return table


def by_scanner(client: kudu.Client, table: kudu.Table, **settings) -> list[tuple]:
    """The rows of one scanner, sorted."""
    scanner = table.scanner()
    for name, value in settings.items():
        getattr(scanner, name)(value)
    return sorted(scanner.open().read_all_tuples())


def by_tokens(client: kudu.Client, table: kudu.Table, **settings) -> list[tuple]:
    """The rows of all tokens, each read by a client of its own, sorted."""
    builder = table.scan_token_builder()
    for name, value in settings.items():
        getattr(builder, name)(value)
    rows = []
    for token in builder.build():
        other = kudu.connect(client.engine.root)
        scanner = other.deserialize_token_into_scanner(token.serialize())
        rows += scanner.open().read_all_tuples()
        scanner.close()
    return sorted(rows)


READS = pytest.mark.parametrize("read", [by_scanner, by_tokens], ids=lambda read: read.__name__)


@READS
def test_a_scan_gives_all_rows(client, table, read):
    """Of the columns that are chosen by name or number."""
    assert read(client, table) == ROWS
    names = read(client, table, set_projected_column_names=["key", "string_val"])
    assert names[:3] == [(0, "hello_0"), (1, None), (2, "hello_2")]
    assert read(client, table, set_projected_column_names="key") == [(i,) for i in range(100)]
    assert read(client, table, set_projected_column_indexes=[0, 1]) == [row[:2] for row in ROWS]
    for policy in ("leader", kudu.CLOSEST_REPLICA, 2):
        assert read(client, table, set_selection=policy) == ROWS


@READS
def test_predicates_are_comparisons(client, table, read):
    """They may be used again; the rows meet all of them."""
    key, text = table["key"], table["string_val"]
    both = [key > 19, key < 50]
    for _ in range(2):
        assert read(client, table, add_predicates=both) == ROWS[20:50]
    assert read(client, table, add_predicates=[text >= "hello_20", text <= "hello_22"]) == [
        ROWS[20], ROWS[22],
    ]  # fmt: skip
    chosen = [table[0].in_list([2, 98]), table["string_val"] >= "hello_9"]
    assert read(client, table, add_predicates=chosen) == [ROWS[98]]
    assert read(client, table, add_predicate=text.is_not_null()) == ROWS[::2]
    assert read(client, table, add_predicate=text.is_null()) == ROWS[1::2]
    assert read(client, table, add_predicate=key != 5) == ROWS[:5] + ROWS[6:]


def test_a_literal_of_a_wrong_type_is_a_type_error(table):
    """And so is None: there are predicates for it."""
    text = table["string_val"]
    wrong = [
        lambda: text >= None,
        lambda: text == None,  # noqa: E711
        lambda: text >= 1,
        lambda: text.in_list(["testing", datetime.datetime(2016, 1, 1)]),
        lambda: text.in_list(["hello_20", 120]),
        lambda: table["key"] == "a",
        lambda: table["at"].in_list([START, None]),
    ]
    for compare in wrong:
        with pytest.raises(TypeError):
            compare()
    with pytest.raises(ValueError, match="Invalid timestamp type"):
        _ = table["at"] == 5


LITERALS = [
    ("unixtime_micros_val", ("2016-01-01", "%Y-%m-%d"), 0),
    ("unixtime_micros_val", datetime.datetime(2016, 1, 1), 0),
    ("decimal_val", Decimal("111.11"), 0),
    ("bool_val", False, 1),
    ("bool_val", 0, 1),
    ("double_val", 200.1, 1),
    ("int8_val", np.int64(-1), 1),
    ("float_val", -150.2, 1),
    ("float_val", np.float32(-150.2), 1),
    ("binary_val", "Иордания", 1),
    ("binary_val", "Иордания".encode(), 1),
    ("string_val", "测试二".encode(), 1),
    ("varchar_val", "Test One", 0),
    ("date_val", datetime.date(1970, 1, 1), 0),
]


@READS
@pytest.mark.parametrize(("column", "literal", "row"), LITERALS, ids=lambda value: repr(value)[:20])
def test_a_literal_of_each_type_finds_its_row(client, type_table, read, column, literal, row):
    """A float is rounded as its cells are."""
    expected = [TYPE_ROWS[row][:-1]]
    names = type_table.schema.names[:-1]
    where = {"set_projected_column_names": names}
    assert (
        read(client, type_table, add_predicate=type_table[column] == literal, **where) == expected
    )
    assert read(
        client, type_table, add_predicate=type_table[column].in_list([literal]), **where
    ) == (expected)


@READS
def test_bounds_are_rows_dicts_or_values(client, table, read):
    """The lower one is inclusive, the upper one exclusive."""
    upper = "add_upper_bound" if read is by_tokens else "add_exclusive_upper_bound"
    row = table.schema.new_row({"key": 55})
    assert read(client, table, add_lower_bound={"key": 50}, **{upper: row}) == ROWS[50:55]
    assert read(client, table, add_lower_bound=[50], **{upper: (55,)}) == ROWS[50:55]


@READS
def test_a_snapshot_shows_the_rows_of_a_moment(client, table, read):
    """A datetime without a zone is UTC, text has a format."""
    session = client.new_session()
    session.apply(table.new_delete({"key": 0}))
    session.flush()
    moment = client.latest_observed_timestamp()
    session.apply(table.new_insert(ROWS[0]))
    session.flush()
    naive = moment.replace(tzinfo=None)
    for given in (
        moment,
        naive,
        (naive.isoformat(timespec="microseconds"), "%Y-%m-%dT%H:%M:%S.%f"),
    ):
        builder = {"set_read_mode": "snapshot", "set_snapshot": given}
        assert read(client, table, **builder) == ROWS[1:]
    for mode in (kudu.READ_LATEST, "read_your_writes", kudu.READ_YOUR_WRITES):
        assert read(client, table, set_read_mode=mode) == ROWS


def test_a_setting_that_is_not_known_is_a_value_error(table):
    """With kudu-python's texts."""
    scanner = table.scanner()
    for set_it, wrong, text in (
        (scanner.set_read_mode, "newest", "Invalid read mode: newest"),
        (scanner.set_read_mode, 3, "Invalid read mode: 3"),
        (scanner.set_selection, "nearest", "Invalid replica selection policy: nearest"),
        (scanner.set_snapshot, "2016-01-01", "To use a string timestamp you must provide a format"),
        (scanner.set_snapshot, datetime.datetime(1969, 1, 1), "be greater than the unix epoch"),
        (scanner.set_limit, 0, "limit 0 of a scan is not above 0"),
    ):
        with pytest.raises(ValueError, match=text):
            set_it(wrong)
    with pytest.raises(kudu.KuduNotFound, match="no column 'absent'"):
        scanner.set_projected_column_names(["absent"])


def test_a_scanner_reads_in_batches(table):
    """It opens itself, once; a limit may be above the number of rows."""
    for limit in (99, 100, 101):
        scanner = table.scanner()
        scanner.set_limit(limit)
        assert len(scanner.read_all_tuples()) == min(limit, 100)
    scanner = table.scanner().set_fault_tolerant().set_cache_blocks(False).set_batch_size_bytes(500)
    lower, upper = scanner.new_bound(), scanner.new_bound()
    lower["key"], upper["key"] = 10, 90
    scanner.add_lower_bound(lower).add_exclusive_upper_bound(upper).open().open()
    rows, batches = [], 0
    while scanner.has_more_rows():
        rows += scanner.keep_alive().next_batch().as_tuples()
        batches += 1
    assert rows == ROWS[10:90]
    assert batches > 1
    with pytest.raises(StopIteration):
        scanner.next_batch()
    assert [row for part in table.scanner().xbatches() for row in part]
    batch = table.scanner().set_fault_tolerant().open().next_batch()
    assert (batch[1], next(iter(batch))) == (ROWS[1], ROWS[0])


def test_the_columns_of_a_scan_make_a_new_schema(table):
    """Without a key; the columns can be copied."""
    scanner = table.scanner().set_projected_column_indexes([0, 1]).open()
    projection = scanner.get_projection_schema()
    assert str(projection).splitlines()[-2:] == ["  PRIMARY KEY ()", "}"]
    builder = kudu.schema_builder()
    for column in projection:
        builder.copy_column(column)
    builder.set_primary_keys(["key"])
    assert builder.build().names == ["key", "int_val"]
    assert builder.build()["key"].type_to_string() == "INT32 NOT NULL"
    (token, *_) = table.scan_token_builder().set_projected_column_names([]).build()
    assert token.into_kudu_scanner().get_projection_schema().names == []


def test_times_are_read_as_they_were_given(client, table):
    """As text, (text, format), or with another zone."""
    east = datetime.timezone(datetime.timedelta(hours=-4))
    given = [
        (100, "2016-09-14T23:11:32.432019"),
        (101, ("2016-09-15", "%Y-%m-%d")),
        (102, datetime.datetime(2016, 9, 15, 12, tzinfo=east)),
    ]
    session = client.new_session()
    for key, moment in given:
        op = table.new_insert()
        op[0], op[3] = key, moment
        session.apply(op)
    session.flush()
    scanner = table.scanner().add_predicate(table["key"] >= 100).set_fault_tolerant()
    assert [row[3] for row in scanner.read_all_tuples()] == [
        datetime.datetime(2016, 9, 14, 23, 11, 32, 432019, UTC),
        datetime.datetime(2016, 9, 15, tzinfo=UTC),
        datetime.datetime(2016, 9, 15, 16, tzinfo=UTC),
    ]


def test_a_token_knows_its_tablet_and_where_it_is_read(client, table):
    """Its one replica is the leader, on the one server."""
    for token in table.scan_token_builder().set_timout_millis(100).build():
        (replica,) = token.tablet().replicas()
        scanner = token.into_kudu_scanner().open()
        assert replica.is_leader()
        assert scanner.get_current_server() == replica.ts() == client.list_tablet_servers()[0]
        assert token.tablet().id() in table.engine.tablet_ids
        other = kudu.ScanToken().deserialize_into_scanner(client, token.serialize())
        assert sorted(other.read_all_tuples()) == sorted(scanner.read_all_tuples())
    assert table.scanner().get_current_server().hostname()
    with pytest.raises(kudu.KuduInvalidArgument, match="an empty token"):
        kudu.ScanToken().serialize()


def test_a_frame_has_the_types_of_kudu_python(type_table):
    """Whole numbers and floats of their size, times in nanoseconds, the rest as objects."""
    frame = type_table.scanner().to_pandas()
    assert frame.shape == (2, 11)
    assert [str(kind) for kind in frame.dtypes] == [
        "int64", "datetime64[ns, UTC]", "object", "object", "bool", "float64", "int8", "object",
        "object", "object", "float32",
    ]  # fmt: skip
    indexed = type_table.scanner().to_pandas(index="key", coerce_float=True)
    assert (indexed.index.name, sorted(indexed.index)) == ("key", [1, 2])
    assert indexed["decimal_val"].dtype == np.float64
    session = type_table.parent.new_session("sync")
    session.apply(type_table.new_insert((3, datetime.datetime(9999, 1, 1))))
    late = type_table.scanner().to_pandas()
    assert late["unixtime_micros_val"].max().year == 9999


# -- arrays


def array_row(key: int, count: int, *, has_null: bool = True) -> dict:
    """A row with an array of each type of `count` values, and a null."""
    numbers = range(key, key + count)
    nulls = [None] if has_null else []
    return {
        "id": key,
        "arr_int8": [n % 100 for n in numbers] + nulls,
        "arr_int16": [n * 10 for n in numbers] + nulls,
        "arr_int32": [n * 100 for n in numbers] + nulls,
        "arr_int64": [n * 1000 for n in numbers] + nulls,
        "arr_float": [n + 0.5 for n in numbers] + nulls,
        "arr_double": [n + 0.1 for n in numbers] + nulls,
        "arr_bool": [n % 2 == 0 for n in numbers] + nulls,
        "arr_string": [f"text{n}" for n in numbers] + nulls,
        "arr_binary": [f"data{n}".encode() for n in numbers] + nulls,
        "arr_unixtime_micros": [START + datetime.timedelta(days=n) for n in numbers] + nulls,
        "arr_date": [datetime.date(2020, 1, 1 + n % 28) for n in numbers] + nulls,
        "arr_varchar": [f"varchar{n}" for n in numbers] + nulls,
        "arr_decimal": [Decimal(n).scaleb(-2) for n in numbers] + nulls,
    }


@pytest.fixture
def array_table(client: kudu.Client) -> kudu.Table:
    """An empty table of arrays."""
    builder = kudu.schema_builder()
    builder.add_column("id", kudu.int32, nullable=False).primary_key()
    for name in array_row(0, 0):
        if name != "id":
            kind = name.removeprefix("arr_")
            spec = builder.add_column(name).nested_type(kudu.array_type(kind))
            if kind == "varchar":
                spec.length(50)
            if kind == "decimal":
                spec.precision(8).scale(2)
    by_id = Partitioning().set_range_partition_columns(["id"])
    return client.create_table("arrays", builder.build(), by_id)


def test_arrays_are_written_updated_and_deleted(client, array_table):
    """Of every type, with nulls and of any length; null and empty are two things."""
    session = client.new_session()
    model = {key: array_row(key, key % 3, has_null=key < 3) for key in range(1, 5)}
    session.apply(array_table.new_insert(model[1]))
    for key in (2, 3, 4):
        session.apply(array_table.new_upsert(model[key]))
    session.flush()
    found = array_table.scanner().set_fault_tolerant().open().read_all_tuples()
    assert found == [tuple(row.values()) for row in model.values()]
    model[2] = array_row(2, 10) | {"id": 2}
    model[3]["arr_int8"] = None
    session.apply(array_table.new_update(model[2]))
    session.apply(array_table.new_upsert(model[3]))
    session.apply(array_table.new_delete({"id": 1}))
    session.flush()
    del model[1]
    found = array_table.scanner().set_fault_tolerant().open().read_all_tuples()
    assert found == [tuple(row.values()) for row in model.values()]


@pytest.mark.parametrize(("precision", "scale"), [(9, 4), (18, 6), (38, 10)])
def test_decimals_of_any_precision_are_elements(client, precision, scale):
    """More than 18 digits too, which kudu-python refuses."""
    builder = kudu.schema_builder()
    builder.add_column("k", kudu.int32, nullable=False).primary_key()
    numbers = builder.add_column("v").nested_type(kudu.array_type(kudu.decimal))
    numbers.precision(precision).scale(scale)
    table = client.create_table("d", builder.build(), Partitioning())
    step = Decimal(1).scaleb(-scale)
    values = [Decimal("-9999.9999"), step, None, Decimal(0).quantize(step)]
    session = client.new_session("sync")
    session.apply(table.new_insert((1, values)))
    session.apply(table.new_insert((2, [None, None])))
    rows = table.scanner().set_fault_tolerant().read_all_tuples()
    assert rows == [(1, values), (2, [None, None])]
