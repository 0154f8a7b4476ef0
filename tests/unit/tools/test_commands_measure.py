"""sizes, perf, locate and schema on the command line, and copies with filters."""

import datetime
import json
from decimal import Decimal

import pytest

import kudulite
from tests.support.command_line import error, output, value


@pytest.fixture
def table(tmp_path):
    """A table of several types in five tablets, with rows on disk and in memory."""
    columns = [
        kudulite.column("host", "string", comment="where"),
        kudulite.column("day", "date"),
        kudulite.column("load", "double", compression="zstd", encoding="bitshuffle"),
        kudulite.column("price", "decimal(9, 2)", default=Decimal("1.50")),
        kudulite.column("ok", "bool", default=True, mutable=False),
        kudulite.column("tags", kudulite.array("int32")),
        kudulite.column("code", "varchar(3)"),
    ]
    middle = datetime.date(2020, 1, 2)
    own = [(["host"], 3, 5)]  # hash partitions of the second range
    late = datetime.date(2021, 1, 1)
    ranges = {"columns": ["day"], "bounds": [[None, middle], [middle, late, own]]}
    table = kudulite.connect(tmp_path / "root").create_table(
        "t", kudulite.schema(columns, ["host", "day"]), hash_partitions=[(["host"], 2, 7)],
        range_partitions=ranges, owner="ann", comment="loads",
    )  # fmt: skip
    days = [datetime.date(2020, 1, 1), middle]
    table.insert([{"host": f"h{i}", "day": days[i % 2], "load": float(i)} for i in range(100)])
    table.flush()
    session = kudulite.connect(tmp_path / "root").new_session()
    session.apply(table.new_update({"host": "h0", "day": days[0], "load": None}))
    session.apply(table.new_insert(("new", days[1], 5.0)))
    session.apply(table.new_delete(("h1", days[1])))
    session.flush()
    return table


def test_sizes_are_those_of_the_column_chunks(table):
    """With nulls and the range of values; what is not base data is listed beside it."""
    found = value("sizes", table.path)
    by_name = {column["column"]: column for column in found["columns"]}
    assert list(by_name) == table.schema.names
    load = by_name["load"]
    assert (load["values"], load["nulls"], load["min"], load["max"]) == (100, 0, "0.0", "99.0")
    assert (load["encoding"], load["compression"]) == ("bitshuffle", "zstd")
    assert by_name["code"]["nulls"] == 100
    assert (by_name["host"]["min"], by_name["day"]["max"]) == ("h0", "2020-01-02")
    assert all(column["bytes"] > 0 for column in found["columns"])
    assert found["other_bytes"]["key_indexes"] > 0
    assert found["other_bytes"]["logs"] > 0
    base = sum(column["bytes"] for column in found["columns"])
    assert base < sum(file.stat().st_size for file in table.path.rglob("base-*.parquet"))
    assert "bloom filters" in output("sizes", table.path)


def test_sizes_leave_out_a_dropped_column(table):
    """Its chunks are in the files until they are compacted."""
    alterer = kudulite.connect(table.path.parent).new_table_alterer(table)
    alterer.drop_column("load")
    alterer.add_column("late", "int64")
    alterer.alter()
    found = {column["column"]: column for column in value("sizes", table.path)["columns"]}
    assert "load" not in found
    assert (found["late"]["bytes"], found["late"]["min"]) == (0, "")


def test_perf_reads_each_tablet(table, tmp_path):
    """As often as it is asked to; the rows of all tablets are those of a scan."""
    found = value("perf", table.path, "--repeat", "2", "--columns", "load")
    assert {piece["tablet"] for piece in found} == set(table.tablet_ids)
    assert [sum(p["rows"] for p in found if p["run"] == run) for run in (1, 2)] == [100, 100]
    assert all(piece["seconds"] > 0 and piece["bytes"] > 0 for piece in found)
    some = value("perf", table.path, "--where", "load >= 90", "--ordered")
    assert sum(piece["rows"] for piece in some) == table.scan(where="load >= 90").count()
    assert "rows_per_second" in output("perf", table.path)
    kudulite.connect(tmp_path / "root").create_table("e", table.schema)
    assert output("perf", tmp_path / "root" / "e") == "no tablet has rows\n"


def test_locate_finds_the_tablet_of_a_key(table):
    """Also where there is no such row; a key of no range is an error."""
    found = value("locate", table.path, "h0", "2020-01-01")
    number = table.tablet_index([("h0", datetime.date(2020, 1, 1))]).to_pylist()[0]
    place = value("partitions", table.path)[number]
    assert found == {"tablet": place["id"], "place": place["place"], "has_row": True}
    assert value("locate", table.path, "h0", "2020-01-02")["has_row"] is False
    assert "no range partition covers the key" in error("locate", table.path, "h0", "2021-01-01")


def test_a_definition_is_that_of_the_tool_of_kudu(table):
    """Names of types, encodings and compressions are Kudu's; bounds are text."""
    found = json.loads(output("schema", table.path))
    assert (found["table_name"], found["owner"], found["comment"]) == ("t", "ann", "loads")
    assert found["schema"]["key_column_names"] == ["host", "day"]
    by_name = {column["column_name"]: column for column in found["schema"]["columns"]}
    assert by_name["host"] == {
        "column_name": "host",
        "column_type": "STRING",
        "is_nullable": False,
        "encoding": "AUTO_ENCODING",
        "compression": "DEFAULT_COMPRESSION",
        "comment": "where",
    }
    assert by_name["price"]["type_attributes"] == {"precision": 9, "scale": 2}
    assert (by_name["price"]["default_value"], by_name["ok"]["default_value"]) == ("1.50", "true")
    assert (by_name["load"]["encoding"], by_name["load"]["compression"]) == ("BIT_SHUFFLE", "ZSTD")
    partition = found["partition"]
    assert partition["hash_partitions"] == [{"columns": ["host"], "num_buckets": 2, "seed": 7}]
    assert partition["range_partition"]["range_bounds"] == [
        {"upper_bound": {"bound_type": "EXCLUSIVE", "bound_values": ["18263"]}},
    ]
    (custom,) = partition["range_partition"]["custom_hash_schema_ranges"]
    assert custom == {
        "range_bounds": {
            "lower_bound": {"bound_type": "INCLUSIVE", "bound_values": ["18263"]},
            "upper_bound": {"bound_type": "EXCLUSIVE", "bound_values": ["18628"]},
        },
        "hash_schema": [{"columns": ["host"], "num_buckets": 3, "seed": 5}],
    }


def test_a_table_is_created_by_its_definition(table, tmp_path):
    """It has the same columns, key, partitions, retention, owner and comment; options replace the
    last two.
    """
    file = tmp_path / "t.json"
    assert "extra_configs" not in json.loads(output("schema", table.path))
    output("retention", table.path, "3d")
    file.write_text(output("schema", table.path))
    output("create", tmp_path / "root" / "again", "--definition", file, "--owner", "bob")
    again = kudulite.open_table(tmp_path / "root" / "again")
    assert again.schema.equals(table.schema)
    assert again.partition_schema.describe_all() == table.partition_schema.describe_all()
    assert (again.owner, again.comment) == ("bob", "loads")
    assert value("retention", again.path)["history_seconds"] == 3 * 86_400
    for wrong in ("[]", "{}", '{"schema": {"columns": [{}], "key_column_names": []}}', "x"):
        file.write_text(wrong)
        assert "not the definition of a table" in error(
            "create", tmp_path / "root" / "w", "--definition", file
        )
    assert "create needs --primary-key" in error("create", tmp_path / "w")


# In each way in which the tool of Kudu takes it.
DEFINITION = """{"table_name": "loads", "schema": {"columns": [
    {"column_name": "host", "column_type": "string", "encoding": "dict_encoding"},
    {"column_name": "day", "column_type": "Date", "comment": "UTC"},
    {"column_name": "n", "column_type": "INT32", "default_value": "7", "cfile_block_size": 4096},
    {"column_name": "at", "column_type": "UNIXTIME_MICROS", "is_nullable": true,
     "default_value": "17", "compression": "zlib"}], "key_column_names": ["host", "day"]},
  "partition": {"hash_partitions": [{"columns": ["host"], "num_buckets": 2}],
    "range_partition": {"columns": ["day"], "range_bounds": [
      {"lower_bound": {"bound_type": "exclusive", "bound_values": ["18261"]},
       "upper_bound": {"bound_type": "Inclusive", "bound_values": ["18627"]}}],
      "range_splits": [{"split_values": ["18400"]}]}},
  "extra_configs": {"configs": {"kudu.table.history_max_age_sec": "3600"}},
  "dimension_label": "a", "comment": "of all hosts", "num_replicas": 3}"""


def test_a_definition_may_be_one_for_the_tool_of_kudu(tmp_path):
    """Columns are NOT NULL unless it says otherwise; names in any case, all bounds and splits."""
    file, place = tmp_path / "loads.json", tmp_path / "root" / "loads"
    file.write_text(DEFINITION)
    output("create", place, "--definition", file)
    table = kudulite.open_table(place)
    assert [repr(column) for column in table.schema] == [
        'string "host" NOT NULL ENCODING dict',
        'date "day" NOT NULL',
        'int32 "n" NOT NULL DEFAULT 7',
        'unixtime_micros "at" DEFAULT datetime.datetime(1970, 1, 1, 0, 0, 0, 17,'
        " tzinfo=datetime.timezone.utc) COMPRESSION gzip",
    ]
    assert (table.schema.key_names, table.comment) == (["host", "day"], "of all hosts")
    assert table.schema["day"].comment == "UTC"
    assert table.partition_schema.describe_all() == [
        "hash(host) × 2",
        "day: [2020-01-01, 2020-05-18)",
        "day: [2020-05-18, 2021-01-01)",
    ]
    assert value("retention", place)["history_seconds"] == 3600


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"exclusive"', '"open"', "'open' is no bound type; possible: INCLUSIVE, EXCLUSIVE"),
        ('"default_value": "7"', '"default_value": "x"', "column 'n': 'x' is no int32"),
        ('["18261"]', '["soon"]', "column 'day': 'soon' is no date"),
        ('["18400"]', "[]", "not the definition of a table"),
        ('"3600"', '"1h"', "not the definition of a table"),
    ],
)
def test_a_wrong_definition_is_an_error(tmp_path, old, new, message):
    """It names what is wrong, and there is no table."""
    file = tmp_path / "loads.json"
    file.write_text(DEFINITION.replace(old, new))
    assert message in error("create", tmp_path / "root" / "loads", "--definition", file)
    assert not (tmp_path / "root" / "loads").exists()


def test_a_definition_has_a_key_that_is_not_unique(tmp_path):
    """Its last key column is listed as any other; the table that is created has the same key."""
    columns = [kudulite.column("host", "string"), kudulite.column("load", "double")]
    lines = kudulite.connect(tmp_path / "root").create_table(
        "lines", kudulite.schema(columns, "host", is_unique=False)
    )
    found = json.loads(output("schema", lines.path))
    assert found["schema"]["key_column_names"] == ["host", "auto_incrementing_id"]
    file = tmp_path / "t.json"
    file.write_text(json.dumps(found))
    output("create", tmp_path / "root" / "again", "--definition", file)
    again = kudulite.open_table(tmp_path / "root" / "again")
    assert again.schema.equals(lines.schema)
    again.insert([{"host": "a", "load": 0.5}])
    assert again.get(("a", 1))["load"] == 0.5


def test_a_copy_holds_the_rows_that_meet_a_condition(table, tmp_path):
    """It is another table, without a past; a copy with its past has all rows."""
    found = value("copy", table.path, tmp_path / "c", "--where", "load < 10")
    copied = kudulite.open_table(tmp_path / "c")
    assert found["with_past"] is False
    assert (
        copied.scan(ordered=True)
        .to_arrow()
        .equals(table.scan(where="load < 10", ordered=True).to_arrow())
    )
    with pytest.raises(kudulite.errors.UsageError, match="a copy with its past has all rows"):
        table.copy_to(tmp_path / "d", where="load < 10")
    assert not (tmp_path / "d").exists()


def test_rows_are_copied_into_another_table(table, tmp_path):
    """Inserted or upserted in one commit, of some columns, as of a moment."""
    target = kudulite.connect(tmp_path / "root").create_table("o", table.schema)
    before = table.current_timestamp()
    table.delete(where="load = 50")
    found = value(
        "copy", table.path, target.path, "--write", "insert", "--where", "load >= 50 AND load < 53",
        "--columns", "host,day,load", "--at", str(before),
    )  # fmt: skip
    assert found["inserted"] == target.live_row_count == 3
    again = value("copy", table.path, target.path, "--write", "upsert", "--where", "load < 3")
    assert (again["inserted"], again["updated"]) == (1, 0)
    assert "already present" in error("copy", table.path, target.path, "--write", "insert")
    assert "--columns and --at are for --write" in error(
        "copy", table.path, tmp_path / "x", "--columns", "host"
    )


def test_a_log_is_dumped_with_its_counts(table):
    """Of each segment and of all; a segment has the counts of its own records."""
    counts = {"INSERT": 0, "UPDATE": 0, "DELETE": 0}
    for log in table.path.rglob("log"):
        found = value("dump", log)
        (about, rows) = found["about"], found["rows"]
        assert about["segments"] == len(rows) == len(list(log.glob("*.log")))
        assert about["row_count"] == sum(row["row_count"] for row in rows)
        for name in counts:
            counts[name] += about[name]
    assert counts == {"INSERT": 101, "UPDATE": 1, "DELETE": 1}


def test_storage_and_ranges_are_altered(table):
    """In one version; a range that is dropped takes its rows along."""
    found = value(
        "alter", table.path, "--set-encoding", "load=plain", "--set-compression", "host=lz4",
        "--set-column-comment", "day=of the year", "--add-column", "n:int64",
        "--set-encoding", "n=rle", "--drop-range", '[null, "2020-01-02"]',
        "--add-range", '[null, "2019-01-01"]',
    )  # fmt: skip
    assert found["version"] == table.version
    assert [(c.encoding, c.compression, c.comment) for c in table.schema][:3] == [
        ("auto", "lz4", "where"), ("auto", "default", "of the year"), ("plain", "zstd", ""),
    ]  # fmt: skip
    assert table.schema["n"].encoding == "rle"
    assert table.scan(where="day < '2020-01-02'").count() == 0
    assert table.partition_schema.describe_all()[1] == "day: [-∞, 2019-01-01)"
    assert "expected [lower, upper]" in error("alter", table.path, "--add-range", "[1]")
    assert "is not JSON" in error("alter", table.path, "--drop-range", "1, 2")
