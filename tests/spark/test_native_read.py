"""read_table: the rows of format("kudulite") and of the embedded scan, whoever reads them."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from operator import eq, ge, gt, le, lt
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from kudulite import NativeLimits, Predicate
from kudulite.errors import OptionError, StorageError
from kudulite.model.schema import encodings_of
from kudulite_spark import literals, native_read
from kudulite_spark.native_read import FileReader
from tests.spark.conftest import BOTH
from tests.support.spark.spark_tables import SHORT_QUERIES, configured, load, make_table, rows
from tests.support.tables.typed_tables import COLUMNS, TypedTable, random_table
from tests.support.tiers import by_tier, tiered

pytestmark = BOTH  # Spark leaves excluded rows out by itself, or with the format of the front

# Nearly all rows from Parquet; and nearly none.
NATIVE = NativeLimits(excluded_fraction_max=1, bounded_rows_max=8)
TOKENS = NativeLimits(excluded_fraction_max=1, handed_bytes_max=0)
LIT = literals.literal
WHOLE = NativeLimits(excluded_rows_max=0, handed_bytes_max=0)


def content(found: DataFrame | pa.Table, schema: pa.Schema) -> list[str]:
    """All rows, bit by bit, in an order."""
    table = found.toArrow() if isinstance(found, DataFrame) else found
    return sorted(map(repr, table.select(schema.names).cast(schema).to_pylist()))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> TypedTable:
    """A random table with every type, changed in every way."""
    found = random_table(tmp_path_factory.mktemp("native") / "t", 11, step_count=8)
    found.overwrite()
    found.step()
    found.rows()
    found.stand_still()
    return found


@pytest.mark.quick
@tiered("limits", [NATIVE, NativeLimits(), TOKENS, WHOLE], quick=1, ids=range(4))
def test_rows_are_those_of_the_source_and_of_a_scan(spark, made, limits, monkeypatch):
    """At several moments, with all types, NULL, NaN, -0.0 and days of an older calendar."""
    monkeypatch.setattr(native_read, "LIMITS", limits)
    schema = made.table.arrow_schema
    every = by_tier(12, 3)
    for moment in made.moments[1::every] if limits is NATIVE else made.moments[-1:]:
        expected = content(made.table.scan(at=moment).to_arrow(), schema)
        frame = kudulite_spark.read_table(spark, made.path, snapshot=moment)
        assert content(frame, schema) == expected, moment
        if limits is NATIVE:
            source = load(spark, made.path, snapshotTimestamp=str(moment))
            assert content(source, schema) == expected
            assert frame.schema.simpleString() == source.schema.simpleString()
            assert [field.metadata for field in frame.schema] == [
                field.metadata for field in source.schema
            ]


def test_altered_columns_are_read_by_their_ids(spark, tmp_path, monkeypatch):
    """Files of several layouts: renamed, added, dropped and added again."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    altered = random_table(tmp_path / "t", 21, step_count=3)
    before = altered.table.current_timestamp()
    altered.alter()
    altered.table.upsert(altered.table.scan(limit=15).to_arrow())
    for moment in (before, None):
        expected = altered.table.scan(at=moment).to_arrow()
        frame = kudulite_spark.read_table(spark, altered.path, snapshot=moment)
        assert content(frame, expected.schema) == content(expected, expected.schema)
    assert frame.filter("added = 17 AND i16 IS NULL").count() == len(
        [row for row in altered.table.scan().to_pylist() if row["added"] == 17 and not row["i16"]]
    )


def test_every_encoding_and_compression_is_read_exactly(spark, tmp_path, monkeypatch):
    """Every attribute of a column, in files that Spark may or may not read by itself."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    codecs = ["none", "lz4", "snappy", "zstd", "gzip"]
    columns = [kudulite.column("id", kudulite.int32)]
    values: dict[str, list] = {"id": list(range(200))}
    for name, kind, given in COLUMNS:
        column_type = kudulite.parse_type(str(kind))
        for number, encoding in enumerate(encodings_of(column_type)):
            codec = codecs[(len(values) + number) % len(codecs)]
            full = f"{name}_{encoding}"
            columns.append(kudulite.column(full, column_type, encoding=encoding, compression=codec))
            values[full] = [None if i % 7 == 3 else given[i % len(given)] for i in range(200)]
    client = kudulite.connect(tmp_path)
    table = client.create_table("t", kudulite.schema(columns, "id"))
    table.insert(pa.table(values, schema=table.arrow_schema))
    table.delete({"id": [3, 77]})
    expected = content(table.scan().to_arrow(), table.arrow_schema)
    plain = [name for name in table.schema.names if not name.endswith("bitshuffle")]
    for names in (table.schema.names, plain):
        frame = kudulite_spark.read_table(spark, str(tmp_path / "t"), columns=names)
        schema = pa.schema([table.arrow_schema.field(name) for name in names])
        rows_found = content(frame, schema)
        assert rows_found == (
            expected
            if names is not plain
            else content(table.scan(columns=plain).to_arrow(), schema)
        )


def test_folders_and_columns_of_any_name(spark, tmp_path, monkeypatch):
    """Names that Spark takes for patterns, partitions, fields of structs or its own."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    names = ["a.b", "a`b", "x y", "Ä", "size", "row", "block", "MASK"]
    for folder in ("k=1", "with [a] {b} * ? %20 ü", "_hidden"):
        place = tmp_path / folder / "t"
        place.parent.mkdir()
        content_of = [tuple(range(i, i + len(names))) for i in range(50)]
        types = dict.fromkeys(names, pa.int64())
        path = make_table(place, content_of, types, primary_key=["a.b"])
        table = kudulite.open_table(path)
        table.flush()
        table.update({"a.b": [3], "size": [-1]})
        table.delete({"a.b": [4]})
        frame = kudulite_spark.read_table(spark, path)
        assert rows(frame) == rows(load(spark, path))
        assert len(frame.inputFiles()) == 1
        assert frame.filter("`a.b` = 3").select("size").collect() == [(-1,)]


@pytest.fixture
def _short_queries(spark: SparkSession) -> Iterator[None]:
    with configured(spark, SHORT_QUERIES):
        yield


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_missing_file_is_an_error_below_any_folder(spark, tmp_path, monkeypatch, is_changed):
    """Spark itself says so only where the path has no character of patterns."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    for folder, error in (("[a] * ?", StorageError), ("a", (StorageError, AnalysisException))):
        place = tmp_path / folder / "t"
        place.parent.mkdir()
        content_of, types = [(n, n) for n in range(50)], dict.fromkeys("kv", pa.int64())
        path = make_table(place, content_of, types, primary_key=["k"])
        table = kudulite.open_table(path)
        table.flush()
        if is_changed:
            table.update({"k": [3], "v": [-1]})
        assert kudulite_spark.read_table(spark, path).count() == 50
        for base in place.glob("tablet/*/rowset/*/base-*"):
            base.unlink()
        with pytest.raises(error, match="does not exist"):
            kudulite_spark.read_table(spark, path).count()


@pytest.mark.usefixtures("_short_queries")
def test_filters_mean_what_they_mean_to_spark_and_to_a_scan(spark, made, monkeypatch):
    """`where`, a filter of the DataFrame, and the option `filter` leave the same rows: row groups
    are skipped by statistics that know nothing of NaN and -0.0."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    # What Spark filters row by row, without any statistics.
    frame = spark.createDataFrame(made.table.scan().to_arrow())
    native = kudulite_spark.read_table(spark, made.path)
    texts = [
        "f64 > 5",
        "f64 = 0.0",
        "f32 >= 0 AND f64 <= 2.5",
        "i32 = -7 AND text LIKE 'a%'",
        "i8 > 100 AND i8 < 1000",
        "day < '1600-01-01'",
        "moment >= '1969-12-31T23:59:59Z'",
        "local IN ('1582-10-07 00:00:00')",
        "d18 >= 0.00005",
        "raw IS NULL AND short >= 'b'",
        "f64 > 5 OR f64 IS NULL OR i32 = -7",
        "NOT (text LIKE 'a%' OR i32 IN (0, -7)) AND f64 != 0.0D",
        "i8 NOT IN (-1, 0, 1) OR (d18 < 0.00005 AND NOT f32 <=> 0)",
        "day NOT BETWEEN '1600-01-01' AND '2000-01-01' OR raw IS NULL",
    ]
    for text in texts:
        where = kudulite_spark.read_table(spark, made.path, where=text)
        expected = content(load(spark, made.path, filter=text), made.table.arrow_schema)
        assert content(where, made.table.arrow_schema) == expected, text
        if "'1" not in text:  # a time without a zone is of the session's zone to Spark
            assert content(frame.filter(text), made.table.arrow_schema) == expected, text
            assert content(native.filter(text), made.table.arrow_schema) == expected, text
    for text in ("f64 = double('NaN')", "f32 IN (double(0), 1.5)", "f64 <=> -0.0D", "f64 >= 0.0D"):
        assert frame.filter(text).count() == native.filter(text).count() > 0, text


@pytest.mark.usefixtures("_short_queries")
def test_lists_of_every_type(spark, made, monkeypatch):
    """They give the rows of a scan; numbers and texts are handed to Spark as they are."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    schema = made.table.arrow_schema
    for name, _, given in COLUMNS:
        kind = made.table.schema.column(name).type
        if kind.element is not None:
            continue
        made_literals = []
        monkeypatch.setattr(literals, "literal", lambda *a, m=made_literals: m.append(a) or LIT(*a))
        listed = Predicate(name, "in", tuple(given[1:]))
        found = kudulite_spark.read_table(spark, made.path, where=listed)
        assert content(found, schema) == content(made.table.scan(where=[listed]).to_arrow(), schema)
        assert not made_literals or kind.name not in ("int8", "int32", "int64", "string", "varchar")


def test_what_is_read_may_be_said_as_text(spark, made):
    """Columns as in the option, a path as an object; what is no predicate is named."""
    found = kudulite_spark.read_table(spark, Path(made.path), columns="I8, id", where="i8 > 100")
    assert found.columns == ["i8", "id"]
    with pytest.raises(OptionError, match=r"where: .*i8.* is no predicate; give text"):
        kudulite_spark.read_table(spark, made.path, where=sf.col("i8") > 100)


def test_days_that_java_s_old_calendar_lacks(spark, tmp_path, monkeypatch):
    """Spark takes a literal of these days for a later one when it skips row groups."""
    monkeypatch.setattr(native_read, "LIMITS", NATIVE)
    day = datetime.date(1582, 10, 10)
    noon = datetime.datetime(1582, 10, 10, 12, tzinfo=datetime.UTC)
    types = {"k": pa.int32(), "d": pa.date32(), "t": pa.timestamp("us", "UTC")}
    path = make_table(tmp_path / "t", [(1, day, noon)], types, primary_key=["k"])
    kudulite.open_table(path).flush()
    frame = kudulite_spark.read_table(spark, path)
    assert frame.inputFiles()
    for op in ("=", ">=", "<=", "<=>"):
        assert frame.filter(f"d {op} DATE '1582-10-10'").count() == 1
        assert frame.filter(f"t {op} TIMESTAMP '1582-10-10 12:00:00Z'").count() == 1
        where = f"d {op} DATE '1582-10-10' AND t {op} TIMESTAMP '1582-10-10 12:00:00Z'"
        assert kudulite_spark.read_table(spark, path, where=where).count() == 1


@pytest.mark.parametrize("limits", [NATIVE, WHOLE], ids=["parquet", "tokens"])
def test_where_at_and_beyond_the_years_of_python(spark, tmp_path, monkeypatch, limits):
    """Moments outside the years 1 to 9999 are numbers to Python, and moments to Spark."""
    monkeypatch.setattr(native_read, "LIMITS", limits)
    year = 366 * 86_400_000_000
    ends = [-(1 << 63), -(1 << 63) + 1, -60_000 * year - 7, 0, 60_000 * year + 7, (1 << 63) - 1]
    edges = [-62_135_596_800_000_000, 253_402_300_799_999_999]
    micros = sorted(ends + edges + [edges[0] - 1, edges[1] + 1])
    types = {"utc": pa.timestamp("us", "UTC"), "plain": pa.timestamp("us")}
    data = pa.table({"k": range(len(micros))} | {n: pa.array(micros, t) for n, t in types.items()})
    table = kudulite.connect(tmp_path).create_table("t", data.schema, primary_key=["k"])
    table.insert(data)
    moments = {
        "0001-01-01 00:00:00": edges[0],
        "9999-12-31 23:59:59.999999": edges[1],
        "2026-01-01 00:00:00": 1_767_225_600_000_000,
    }
    compare = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq}
    texts = {
        f"{column} '{moment}{zone}'".replace("?", sign): [
            key for key, value in enumerate(micros) if test(value, moments[moment])
        ]
        for column, zone in (("utc ? TIMESTAMP", "Z"), ("plain ? TIMESTAMP_NTZ", ""))
        for sign, test in compare.items()
        for moment in moments
    }
    frames = {t: kudulite_spark.read_table(spark, str(table.path), where=t) for t in texts}
    parts = [frame.selectExpr(f'"{text}" AS text', "k") for text, frame in frames.items()]
    found: dict[str, list[int]] = {text: [] for text in texts}
    for row in reduce(DataFrame.union, parts).collect():
        found[row.text] = sorted([*found[row.text], row.k])
    assert found == texts


def test_positions_hold_where_row_groups_are_skipped(spark, tmp_path):
    """Changed rows are left out of files of several row groups, some of which a filter skips."""
    count = 300_000
    rows_made = pa.table({"k": pa.array(range(count), pa.int64()), "v": pa.array([1] * count)})
    client = kudulite.connect(tmp_path, background_maintenance=False)
    table = client.create_table("t", rows_made.schema, primary_key=["k"])
    table.insert(rows_made)
    changed = [5, 70_000, 131_071, 131_072, 200_001, 262_143, 262_144, 299_999]
    table.update({"k": changed, "v": [100] * len(changed)})
    table.delete({"k": [6, 131_073, 299_998]})
    frame = kudulite_spark.read_table(spark, str(tmp_path / "t"))
    (file,) = table.native_plan().files
    assert len(file.excluded) == 11 and file.row_count == count
    for low, high in [(0, count), (131_072, 262_144), (262_140, count), (131_070, 131_075)]:
        where = [table["k"] >= low, table["k"] < high]
        values = table.scan(columns=["v"], where=where).to_arrow()["v"]
        expected = (len(values), sum(values.to_pylist()))
        for found in (
            frame.filter(f"k >= {low} AND k < {high}"),
            kudulite_spark.read_table(spark, str(tmp_path / "t"), where=where),
        ):
            assert tuple(found.selectExpr("count(*)", "sum(v)").first()) == expected
    assert frame.select().count() == count - 3
    empty = kudulite_spark.read_table(spark, str(tmp_path / "t"), columns=[])
    assert (empty.columns, empty.count()) == ([], count - 3)


def test_many_changes_and_few_keys_are_not_left_to_files(spark, tmp_path, front):
    """The source reads a table with many changes, if it has the front; the call reads few keys."""
    made_rows = [(k, f"s{k % 3}") for k in range(9000)]
    types = {"k": pa.int64(), "s": pa.string()}
    path = make_table(tmp_path / "t", made_rows, types, primary_key=["k"])
    table = kudulite.open_table(path)
    table.flush()
    table.update({"k": list(range(0, 9000, 10)), "s": ["new"] * 900})
    table.flush()
    expected = rows(load(spark, path))
    frame = kudulite_spark.read_table(spark, path)
    assert bool(frame.inputFiles()) != front
    assert frame.count() == 9000 and rows(frame) == expected
    assert kudulite_spark.read_table(spark, path, columns="s").columns == ["s"]
    few = kudulite_spark.read_table(spark, path, where="k BETWEEN 9 AND 11")
    assert not few.inputFiles()
    assert rows(few) == [(9, "s0"), (10, "new"), (11, "s2")]


def test_a_view_in_sql_joins_and_broadcasts(spark, tmp_path, monkeypatch):
    """Spark knows the size of base data and what is handed over, and skips row groups itself."""
    path = make_table(
        tmp_path / "t",
        [(k, f"s{k % 3}") for k in range(3000)],
        {"k": pa.int64(), "s": pa.string()},
        primary_key=["k"],
    )
    kudulite.open_table(path).flush()
    kudulite.open_table(path).update({"k": [5], "s": ["new"]})
    frame = kudulite_spark.read_table(spark, path)
    frame.createOrReplaceTempView("native_view")
    found = spark.sql(
        "SELECT a.s, count(*) FROM native_view a JOIN native_view b ON a.k = b.k + 1"
        " WHERE b.k < 9 GROUP BY a.s"
    )
    assert rows(found) == [("new", 1), ("s0", 3), ("s1", 3), ("s2", 2)]
    big = spark.range(1 << 40).withColumnRenamed("id", "k")
    plan = str(big.join(frame, "k")._jdf.queryExecution().executedPlan())
    assert "BroadcastHashJoin" in plan
    assert "EqualTo(k,7)], ReadSchema" in str(
        frame.filter("k = 7")._jdf.queryExecution().executedPlan()
    )
    spark.catalog.dropTempView("native_view")


def test_where_spark_knows_no_row_positions_the_python_source_serves(spark, made):
    """With Spark's second version of file sources nothing is read natively."""
    assert FileReader.of(spark).has_metadata
    with configured(spark, {"spark.sql.sources.useV1SourceList": "csv"}):
        assert not FileReader.of(spark).has_metadata
        frame = kudulite_spark.read_table(spark, made.path)
        assert frame.inputFiles() == []


def test_many_files_are_found_without_a_job(spark, tmp_path):
    """Of more than 32 paths, Spark by itself makes a job with a task for each."""
    path = make_table(tmp_path / "t", [(0,)], {"k": pa.int64()}, primary_key=["k"])
    table = kudulite.open_table(path)
    for number in range(33):
        write = table.new_bulk_write(operation="insert", columns=["k"])
        write.commit([write.stage([pa.record_batch([pa.array([number + 1])], ["k"])])])
    setting = "spark.sql.sources.parallelPartitionDiscovery.threshold"
    before = spark.conf.get(setting)
    spark.sparkContext.setJobGroup("found", "files")
    try:
        frame = kudulite_spark.read_table(spark, path)
        assert list(spark.sparkContext.statusTracker().getJobIdsForGroup("found")) == []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert spark.conf.get(setting) == before
    assert frame.count() == 34


LISTS = {
    "n": (pa.int16(), [-3, 0, 32767]),
    "s": (pa.string(), ["plain, text", "it's", "back\\slash", "new\nline", "é", "", "$x"]),
    "b": (pa.binary(), [b"\x00\xff", b"a"]),
    "d": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2011, 12, 30)]),
    "m": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-9999999999.99")]),
    "f": (pa.float64(), [float("nan"), -0.0, 0.1]),
    "at": (pa.timestamp("us", "UTC"), [datetime.datetime(1500, 1, 1, 1, 2, 3, 4, datetime.UTC)]),
    "nt": (pa.timestamp("us"), [datetime.datetime(2026, 3, 29, 2, 30, 0, 1)]),
}


@pytest.mark.usefixtures("_short_queries")
def test_a_list_of_values_is_read_in_every_type(spark, tmp_path, monkeypatch):
    """As the embedded scan does; numbers, days and plain text cost no Column for each value."""
    types = {"k": pa.int64(), **{name: kind for name, (kind, _) in LISTS.items()}}
    content = [
        (k, *(values[k % len(values)] if k % 3 else None for _, values in LISTS.values()))
        for k in range(40)
    ]
    path = make_table(tmp_path / "t", content, types, primary_key=["k"])
    kudulite.open_table(path).flush()
    for name, (_, values) in LISTS.items():
        where = [Predicate(name, "in", tuple(values[:-1]) or tuple(values)), ("k", ">=", 5)]
        wanted = kudulite.open_table(path).scan(where=where).to_arrow()
        found = kudulite_spark.read_table(spark, path, where=where)
        assert content_of_keys(found) == sorted(wanted["k"].to_pylist()), name
    made = []
    lit = sf.lit
    monkeypatch.setattr(literals.sf, "lit", lambda value: made.append(value) or lit(value))
    many = tuple(datetime.date(2011, 1, 2) + datetime.timedelta(2 * n) for n in range(1000))
    assert kudulite_spark.read_table(spark, path, where=[Predicate("d", "in", many)]).count() > 0
    assert len(made) < 10


def content_of_keys(found: DataFrame) -> list[int]:
    """The keys of a DataFrame, in order."""
    return sorted(row.k for row in found.select("k").collect())
