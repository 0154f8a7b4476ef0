"""examples/import_from_kudu.py: a table comes over with its columns, key, partitions and rows.

Kudu itself is not there. Objects with the methods of its Java client that the export calls stand
for a table, and Parquet files that Spark wrote stand for what kudu-spark reads.
"""

import datetime
import importlib.util
import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

import kudulite
from tests.support.command_line import output, value

SCRIPT = Path(__file__).parents[2] / "examples" / "import_from_kudu.py"
MICROS = 1_577_836_800_000_000  # 2020-01-01


def job():
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("import_from_kudu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def getters(**values) -> SimpleNamespace:
    """A Java object whose getters return these values."""
    return SimpleNamespace(
        **{name: lambda *_, value=value: value for name, value in values.items()}
    )


def column(name, kind, *, is_nullable=True, attributes=None, default=None, is_immutable=False):
    """A ColumnSchema of Kudu's Java client."""
    return getters(
        getName=name, getType=getters(name=kind), isNullable=is_nullable, isImmutable=is_immutable,
        getComment=f"the {name}", getEncoding=getters(name="AUTO_ENCODING"),
        getCompressionAlgorithm=getters(name="LZ4"), getTypeAttributes=getters(**attributes or {}),
        getDefaultValue=default,
    )  # fmt: skip


COLUMNS = [
    column("host", "STRING", is_nullable=False),
    column("at", "UNIXTIME_MICROS", is_nullable=False),
    column("small", "INT8", default=7),
    column("price", "DECIMAL", attributes={"getPrecision": 9, "getScale": 2},
           default=Decimal("1.50")),
    column("code", "VARCHAR", attributes={"getLength": 5}),
    column("day", "DATE"),
    column("raw", "BINARY", default=bytearray(b"\x01\xff")),
    column("ok", "BOOL", default=True, is_immutable=True),
    column("ratio", "FLOAT"),
]  # fmt: skip


def kudu_table():
    """A KuduTable with two hash buckets, and two ranges over time."""
    by_name = {each.getName(): each for each in COLUMNS}
    schema = getters(getColumns=COLUMNS, getPrimaryKeyColumns=COLUMNS[:2])
    schema.getColumnIndex = lambda column_id: column_id - 10
    schema.getColumn = by_name.get

    def row(micros=None):
        found = getters(getSchema=schema, isSet=micros is not None)
        found.getLong = {"at": micros}.get
        return found

    middle = row(MICROS)
    ranges = [
        getters(getRangeKeyStart=b"", getRangeKeyEnd=b"x", getDecodedRangeKeyEnd=middle),
        getters(getRangeKeyStart=b"x", getRangeKeyEnd=b"", getDecodedRangeKeyStart=middle),
    ]
    hashed = [getters(getColumnIds=[10], getNumBuckets=2, getSeed=3)]
    own = [getters(getColumnIds=[10], getNumBuckets=4, getSeed=0)]
    partition = getters(
        getHashBucketSchemas=hashed, getRangeSchema=getters(getColumnIds=[11]),
        getRangesWithHashSchemas=[
            SimpleNamespace(lowerBound=middle, upperBound=row(), hashSchemas=own)
        ],
    )  # fmt: skip
    return getters(
        getName="impala::db.t", getSchema=schema, getPartitionSchema=partition,
        getRangePartitions=ranges, getOwner="ann", getComment="",
    )  # fmt: skip


def test_a_kudu_table_comes_over(spark, tmp_path):
    """With types, key, nullability, defaults, partitions and rows; a second load adds nothing."""
    module = job()
    module.field = getattr  # there is no Java object
    definition = module.definition_of(kudu_table())
    assert definition["partition"]["range_partition"]["range_bounds"] == [
        {"upper_bound": {"bound_type": "EXCLUSIVE", "bound_values": [str(MICROS)]}},
    ]
    (custom,) = definition["partition"]["range_partition"]["custom_hash_schema_ranges"]
    assert custom == {
        "range_bounds": {"lower_bound": {"bound_type": "INCLUSIVE", "bound_values": [str(MICROS)]}},
        "hash_schema": [{"columns": ["host"], "num_buckets": 4, "seed": 0}],
    }
    source, target = tmp_path / "export", tmp_path / "warehouse" / "t"
    (source / "definition").mkdir(parents=True)
    (source / "definition" / "part-00000").write_text(json.dumps(definition, indent=2))
    start = datetime.datetime(2019, 12, 31, 23, tzinfo=datetime.UTC)
    early = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
    content = [
        (
            f"h{i % 5}", (start if i else early) + datetime.timedelta(seconds=i), i % 100,
            Decimal(i).scaleb(-2), f"c{i % 10}", datetime.date(1 + i % 2020, 1, 1 + i % 28),
            bytes([i % 256]), i % 2 == 0, i / 4,
        )
        for i in range(5000)
    ]  # fmt: skip
    fields = (
        "host STRING, at TIMESTAMP, small TINYINT, price DECIMAL(9, 2), code STRING, day DATE,"
        " raw BINARY, ok BOOLEAN, ratio FLOAT"
    )
    frame = spark.createDataFrame(content, fields)
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInWrite", "EXCEPTION")  # as in Spark 3
    module.write_rows(frame.repartition(3), str(source))
    for _ in range(2):
        module.main(["load", str(source), str(target)])
    table = kudulite.open_table(target)
    assert [repr(each) for each in table.schema] == [
        'string "host" NOT NULL COMPRESSION lz4',
        'unixtime_micros "at" NOT NULL COMPRESSION lz4',
        'int8 "small" DEFAULT 7 COMPRESSION lz4',
        "decimal(9, 2) \"price\" DEFAULT Decimal('1.50') COMPRESSION lz4",
        'varchar(5) "code" COMPRESSION lz4',
        'date "day" COMPRESSION lz4',
        "binary \"raw\" DEFAULT b'\\x01\\xff' COMPRESSION lz4",
        'bool "ok" DEFAULT True COMPRESSION lz4 IMMUTABLE',
        'float "ratio" COMPRESSION lz4',
    ]
    assert (table.schema.key_names, table.owner) == (["host", "at"], "ann")
    assert table.schema["host"].comment == "the host"
    assert table.partition_schema.describe_all() == [
        "hash(host) × 2",
        "at: [-∞, 2020-01-01 00:00:00+00:00)",
        "at: [2020-01-01 00:00:00+00:00, +∞) hash(host) × 4",
    ]
    assert table.partition_schema.hash_dimensions[0].seed == 3
    assert [tuple(row.values()) for row in table.scan(ordered=True)] == sorted(content)
    assert table.check().problems == ()
    check_import_without_spark(source, tmp_path / "without_spark", table)


def check_import_without_spark(source: Path, root: Path, table: kudulite.Table) -> None:
    """Import the same export with the command; the table is the same."""
    (row,) = value("import-kudu", source, root)
    assert (row["state"], row["result"]["rows"]) == ("ok", len(table))
    again = kudulite.open_table(root / "impala::db.t")
    assert again.scan(ordered=True).to_arrow() == table.scan(ordered=True).to_arrow()
    assert repr(list(again.schema)) == repr(list(table.schema))
    assert again.partition_schema.describe_all() == table.partition_schema.describe_all()


def test_rows_of_a_key_that_is_not_unique_keep_their_ids(spark, tmp_path):
    """Rows that are added later have ids above them; a second load adds nothing."""
    source, target = tmp_path / "export", tmp_path / "warehouse" / "t"
    columns = [
        {"column_name": "host", "column_type": "STRING", "is_nullable": False},
        {"column_name": "auto_incrementing_id", "column_type": "INT64", "is_nullable": False},
        {"column_name": "n", "column_type": "INT32"},
    ]
    key = ["host", "auto_incrementing_id"]
    definition = {
        "table_name": "t",
        "schema": {"columns": columns, "key_column_names": key},
    }
    (source / "definition").mkdir(parents=True)
    (source / "definition" / "part-00000").write_text(json.dumps(definition))
    rows = spark.sql("SELECT 'h' AS host, 3 * id + 5 AS auto_incrementing_id, int(id) AS n"
                     " FROM range(100)")  # fmt: skip
    rows.write.parquet(str(source / "data"))
    for _ in range(2):
        job().main(["load", str(source), str(target)])
    table = kudulite.open_table(target)
    found = table.scan(key, ordered=True).to_arrow()["auto_incrementing_id"].to_pylist()
    assert found == [3 * i + 5 for i in range(100)]
    output("import-kudu", source, tmp_path / "without_spark")
    for each in (table, kudulite.open_table(tmp_path / "without_spark" / "t")):
        assert each.scan(key).to_arrow() == table.scan(key).to_arrow()
    for each in (kudulite.open_table(tmp_path / "without_spark" / "t"), table):
        each.insert([{"host": "h", "n": 100}])
        assert each.get(("h", 303))["n"] == 100


def test_a_cluster_is_exported_table_by_table(monkeypatch, capsys):
    """All as of one moment; a table that fails is named, after the others."""
    module, done = job(), []
    names = ["impala::db.t", "impala__db.t", "broken"]
    client = getters(getTablesList=getters(getTablesList=names))
    monkeypatch.setattr(module, "kudu_client", lambda master: client)

    def export(client, master, name, target, moment_ms):
        if name == "broken":
            raise RuntimeError("no tablet server")
        done.append((target, moment_ms))

    monkeypatch.setattr(module, "export", export)
    with pytest.raises(SystemExit, match="1 tables were not exported: broken"):
        module.main(["export", "kudu-1:7051", "/shared/exports"])
    assert "broken: no tablet server" in capsys.readouterr().err
    targets, moments = zip(*done, strict=True)
    assert len(set(targets)) == 2 and len(set(moments)) == 1
    assert all(target.startswith("/shared/exports/impala__db.t-") for target in targets)
    assert not any(":" in target for target in targets)


def test_the_job_says_how_it_is_called():
    """For arguments that are no step it prints its help."""
    with pytest.raises(SystemExit, match="import_from_kudu.py load"):
        job().main(["load"])
