"""Scanners: settings, batches, and moments."""

import datetime
from decimal import Decimal

import pytest

import kudulite.kudu as kudu
from kudulite.kudu.client import Partitioning
from tests.support.tables.core_tables import CoreTables

UTC = datetime.UTC
T0 = datetime.datetime(2016, 10, 30, 10, 12, tzinfo=UTC)


@pytest.fixture
def table(core: CoreTables) -> kudu.Table:
    """100 rows (k1, k2, v, t) in 3 tablets; v is null in odd rows."""
    builder = kudu.schema_builder()
    builder.add_column("k1", kudu.int32, nullable=False)
    builder.add_column("k2", kudu.string, nullable=False)
    builder.add_column("v", kudu.decimal, precision=6, scale=2)
    builder.add_column("t", kudu.unixtime_micros)
    builder.set_primary_keys(["k1", "k2"])
    part = Partitioning().add_hash_partitions("k1", 3)
    table = kudu.connect(core.root / "root").create_table("t", builder.build(), part)
    table.engine.insert(
        [dict(zip(("k1", "k2", "v", "t"), row(i), strict=True)) for i in range(100)]
    )
    return table


def row(i: int) -> tuple:
    """Row i as a scanner gives it."""
    return i // 2, "ab"[i % 2], None if i % 2 else Decimal(i).quantize(Decimal("1.00")), T0


def test_rows_are_tuples_of_canonical_values(table: kudu.Table):
    """As `get` gives them, in the order of the schema; opening is optional and may be repeated."""
    assert sorted(table.scanner().open().open().read_all_tuples()) == [row(i) for i in range(100)]
    scanner = table.scanner().set_fault_tolerant()
    assert scanner.read_all_tuples() == [row(i) for i in range(100)]
    assert scanner.read_all_tuples() == []


def test_predicates_are_met_together_and_used_again(table: kudu.Table):
    """Comparisons, IN, and the null tests; `table[number]` is a column too."""
    predicates = [table["k1"] > 9, table[0] < 25, table["v"].is_not_null()]
    for _ in range(2):
        scanner = table.scanner().add_predicates(predicates).set_fault_tolerant()
        assert scanner.read_all_tuples() == [row(i) for i in range(20, 50, 2)]
    found = (
        table.scanner()
        .add_predicate(table["k1"].in_list([3, 77]))
        .add_predicate(table[-2].is_null())
    )
    assert found.read_all_tuples() == [row(7)]


def test_a_projection_is_by_name_or_number(table: kudu.Table):
    """Its columns can be copied into a new schema; no column at all gives empty tuples."""
    scanner = table.scanner().set_projected_column_indexes([2, 0]).set_fault_tolerant().set_limit(3)
    assert scanner.get_projection_schema().names == ["v", "k1"]
    assert scanner.read_all_tuples() == [(row(i)[2], row(i)[0]) for i in range(3)]
    builder = kudu.schema_builder()
    for column in sorted(scanner.get_projection_schema(), key=lambda column: column.nullable):
        builder.copy_column(column)
    builder.set_primary_keys(["k1"])
    assert [str(c.column.type) for c in builder.build()] == ["int32", "decimal(6, 2)"]
    assert scanner.get_projection_schema()["k1"].equals(scanner.get_projection_schema()[1])
    assert table.scanner().set_projected_column_names("k2").read_all_tuples()[0] in [("a",), ("b",)]
    assert table.scanner().set_projected_column_names([]).read_all_tuples() == [()] * 100


def test_bounds_are_prefixes_of_the_key(table: kudu.Table):
    """Lower inclusive, upper exclusive; the tightest of several holds; an empty one is none."""
    scanner = table.scanner().set_fault_tolerant()
    lower, upper = scanner.new_bound(), scanner.new_bound()
    lower["k1"] = 10
    upper["k2"], upper[0] = "b", 20
    scanner.add_lower_bound(lower).add_exclusive_upper_bound(upper)
    scanner.add_lower_bound((5,)).add_upper_bound({"k1": 40}).add_lower_bound(scanner.new_bound())
    assert scanner.read_all_tuples() == [row(i) for i in range(20, 41)]
    with pytest.raises(ValueError, match=r"a bound has the columns k2; expected the primary key"):
        table.scanner().add_lower_bound({"k2": "a"})
    with pytest.raises(TypeError, match=r"an integer is required, got str"):
        table.scanner().new_bound()["k1"] = "x"


def test_batches_are_small_and_never_empty(table: kudu.Table):
    """`has_more_rows` is exact, and after the last batch comes StopIteration."""
    scanner = table.scanner().set_fault_tolerant().set_batch_size_bytes(300).open()
    sizes, rows = [], []
    while scanner.has_more_rows():
        batch = scanner.next_batch()
        sizes.append(len(batch))
        assert [batch[i] for i in range(-1, len(batch) - 1)] == batch[-1:] + batch.as_tuples()[:-1]
        rows += batch
    assert rows == [row(i) for i in range(100)]
    assert 0 < min(sizes) <= max(sizes) < 40
    with pytest.raises(StopIteration):
        scanner.next_batch()
    with pytest.raises(IndexError):
        batch[len(batch)]
    many = table.scanner().set_batch_size_bytes(0).xbatches()
    assert [len(batch) for batch in many] == [1] * 100


def test_a_snapshot_is_read_as_it_was(table: kudu.Table):
    """HybridTime, datetime, text in a format; the default is the moment of `open`."""
    before = table.engine.current_timestamp()
    table.engine.delete([{"k1": 0, "k2": "a"}])
    for mode in (kudu.READ_AT_SNAPSHOT, "SNAPSHOT"):
        scanner = table.scanner().set_read_mode(mode).set_snapshot(before)
        assert len(scanner.read_all_tuples()) == 100
        assert scanner.timestamp == before
    assert len(table.scanner().set_read_mode(kudu.READ_LATEST).read_all_tuples()) == 99
    assert len(table.scanner().set_read_mode(kudu.READ_YOUR_WRITES).read_all_tuples()) == 99
    now = datetime.datetime.now(UTC)
    form = "%Y %m %d %H %M %S %f"
    scanner = table.scanner().set_snapshot(now.strftime(form), form)
    assert kudu_time(scanner.open().timestamp) == now

    scanner = table.scanner().open()
    table.engine.delete([{"k1": 1, "k2": "a"}])
    assert len(scanner.read_all_tuples()) == 99
    scanner.close()
    assert len(scanner.read_all_tuples()) == 98


def kudu_time(timestamp: int) -> datetime.datetime:
    """The wall time of a HybridTime."""
    return datetime.datetime.fromtimestamp((timestamp >> 12) / 1e6, UTC)


def test_pandas_has_the_scans_types(table: kudu.Table):
    """With an index of the caller's choice; decimals as floats when asked."""
    frame = table.scanner().set_fault_tolerant().to_pandas(index="k1", coerce_float=True)
    assert (frame.index.name, list(frame.columns), len(frame)) == ("k1", ["k2", "v", "t"], 100)
    assert (frame["v"].dtype, frame["v"].iloc[4]) == ("float64", 4.0)
    empty = table.scanner().add_predicate(table["k1"] < 0).to_pandas()
    assert (len(empty), list(empty.columns)) == (0, ["k1", "k2", "v", "t"])


WRONG = [
    (lambda t: t.scanner().set_projected_column_names(["k1", "x"]), "no column 'x'; columns: k1,"),
    (lambda t: t.scanner().set_projected_column_indexes([4]), "no column 4; columns: k1,"),
    (
        lambda t: t.scanner().add_predicate(("k2", ">=", 1)),
        "table 't': predicate on column 'k2': 1",
    ),
    (lambda t: t.scanner().add_predicate(("k2", ">=", None)), "use is_null"),
    (lambda t: t.scanner().set_limit(0), "limit 0 of a scan is not above 0"),
    (lambda t: t.scanner().set_batch_size_bytes(-1), "-1 bytes is below 0"),
    (lambda t: t.scanner().set_read_mode("newest"), "read mode: newest; known: latest, snapshot,"),
    (lambda t: t.scanner().set_selection("any"), "known: leader, closest, first"),
    (lambda t: t.scanner().set_snapshot("x", "%Y"), "'x' does not match format '%Y'"),
    (lambda t: t.scanner().set_snapshot("x"), "you must provide a format"),
    (lambda t: t.scanner().set_snapshot(1).set_read_mode("latest").open(), "read mode 'latest'"),
    (lambda t: t.scanner().open().set_limit(1), "the scanner is open; set it up before"),
    (lambda t: t.scanner().open().add_predicate(t["k1"] == 1), "the scanner is open"),
]


@pytest.mark.parametrize(("use", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_a_wrong_setting_is_refused_at_once(use, problem, table: kudu.Table):
    """With an error that kudu-python's users catch; a missing column is a KeyError too."""
    kind = KeyError if "no column" in problem else ValueError
    with pytest.raises(kind, match=problem):
        use(table)


def test_names_of_servers_are_accepted(table: kudu.Table):
    """A program that sets them runs."""
    scanner = table.scanner().set_selection(kudu.LEADER_ONLY).set_cache_blocks(True)
    assert len(scanner.set_timeout_millis(1000).keep_alive().open().read_all_tuples()) == 100
