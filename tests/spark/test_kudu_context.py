"""KuduContext and kudu-spark's options: a program ports by its master and its table."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import PySparkException

import kudulite
import kudulite_spark
from kudulite.errors import OptionError, TableExistsError, TableNotFoundError
from kudulite_spark import CreateTableOptions, KuduContext, KuduReadOptions, KuduWriteOptions
from kudulite_spark.datasource import KuduliteDataSource
from kudulite_spark.spark_versions import register_source
from tests.support.spark.spark_tables import in_order, rows, stored

TABLE = "impala::db.metrics"
FIELDS = "id BIGINT, day INT, value DOUBLE, note STRING"


@pytest.fixture
def context(spark, tmp_path) -> KuduContext:
    """A context over an empty directory."""
    return KuduContext(spark, str(tmp_path / "warehouse"))


def frame(spark, *content):
    """Rows of the table."""
    return spark.createDataFrame(list(content), FIELDS)


@pytest.mark.quick
def test_a_table_is_made_looked_for_and_deleted(context):
    """With partitions and retention; keys go first."""
    options = CreateTableOptions().addHashPartitions(["id"], 3).setRangePartitionColumns(["day"])
    options.addRangePartition({"day": 0}, {"day": 10}, "INCLUSIVE_BOUND", "EXCLUSIVE_BOUND")
    options.add_range_partition(10, 20).add_split_row({"day": 5}).set_num_replicas(3)
    options.setExtraConfigs({"kudu.table.history_max_age_sec": "3600"})
    options.setOwner("ann").setComment("of days")
    assert not context.tableExists(TABLE)
    made = context.createTable(TABLE, FIELDS, ["day", "id"], options)
    assert context.tableExists(TABLE)
    table = context.syncClient.table(TABLE)
    assert table.schema.key_names == ["day", "id"] == made.schema.key_names
    assert table.partition_schema.tablet_count == 9
    assert (table.owner, table.comment) == ("ann", "of days")
    with pytest.raises(TableExistsError):
        context.createTable(TABLE, FIELDS, ["id"])
    context.deleteTable(TABLE)
    assert not context.tableExists(TABLE)
    context.createTable(TABLE, context.createSchema(FIELDS, ["id"]), CreateTableOptions())
    options = CreateTableOptions().addHashPartitions("id", 3).setRangePartitionColumns("day")
    options.addRangePartition(0, 10).addRangePartition(
        kudulite.RangePartition(10, 20).add_hash_partitions("id", 5)
    )
    made = context.createTable("ranges", FIELDS, ["day", "id"], options)
    assert made.tablet_count == 8


def test_options_that_cannot_be_are_refused_and_leave_no_table(context):
    """By name, with what is known."""
    with pytest.raises(OptionError, match="'kudu.table.x' is unknown; known: kudu.table.history"):
        CreateTableOptions().setExtraConfigs({"kudu.table.x": "1"})
    with pytest.raises(OptionError, match="is in seconds, found '-1'"):
        CreateTableOptions().setExtraConfigs({"kudu.table.history_max_age_sec": "-1"})
    with pytest.raises(OptionError, match="a positive number is needed, found 0"):
        CreateTableOptions().setNumReplicas(0)
    with pytest.raises(OptionError, match=r"needs keys=\[…\]"):
        context.createTable(TABLE, FIELDS)
    schema = context.createSchema(FIELDS, ["id"])
    with pytest.raises(OptionError, match="has its primary key already"):
        context.createTable(TABLE, schema, ["id"])
    with pytest.raises(OptionError, match="table name 'a/b'"):
        context.insertRows(frame(context.spark), "a/b")
    with pytest.raises(TableNotFoundError):
        context.upsertRows(frame(context.spark), "nowhere")
    assert not context.tableExists(TABLE)


def test_rows_are_written_and_deleted(context):
    """A write that fails leaves the table as it was; tests/unit has the other operations."""
    spark = context.spark
    hashed = CreateTableOptions().addHashPartitions("id", 2)
    table = context.createTable(TABLE, FIELDS, ["id"], hashed)
    first = frame(spark, (1, 1, 1.0, "a"), (2, 2, 2.0, "b"))
    context.insertRows(first, TABLE, KuduWriteOptions(repartition=True))
    more = frame(spark, (2, 0, 0.0, "no"), (3, 3, 3.0, "c"))
    with pytest.raises(PySparkException, match="already present"):
        context.insertRows(more, TABLE)
    context.insertRows(more, TABLE, KuduWriteOptions(ignoreDuplicateRowErrors=True))
    drifted = spark.sql("SELECT 1L AS id, CAST(NULL AS STRING) AS note, 'x' AS extra")
    context.updateRows(drifted, TABLE, KuduWriteOptions(ignoreNull=True, handleSchemaDrift=True))
    context.deleteRows(spark.sql("SELECT 3L AS id"), TABLE)
    assert stored(table.path) == [(1, 1, 1.0, "a", "x"), (2, 2, 2.0, "b", None)]


def test_a_table_is_read_as_an_rdd(context):
    """All columns, some of them, and as of a moment."""
    table = context.createTable(TABLE, FIELDS, ["id"])
    table.insert([{"id": 1, "note": "old"}])
    moment = datetime.datetime.now(datetime.UTC)
    milliseconds = int(moment.timestamp() * 1000) + 1
    while context.syncClient.latest_observed_timestamp().timestamp() * 1000 <= milliseconds:
        pass
    table.upsert([{"id": 1, "note": "new"}, {"id": 2, "note": None}])
    assert in_order(context.kuduRDD(TABLE).collect()) == [
        (1, None, None, "new"),
        (2, None, None, None),
    ]
    found = context.kuduRDD(TABLE, ["note"], KuduReadOptions(snapshotTimestampMs=milliseconds))
    assert [row.note for row in found.collect()] == ["old"]
    assert context.kuduRDD(TABLE, ["*"], KuduReadOptions(batchSize=1000)).count() == 2


def test_a_program_ports_by_its_master_and_its_table(context):
    """The rest of its options stays as it is; so do its views."""
    spark = context.spark
    context.createTable(TABLE, FIELDS, ["id"])
    place = {"kudu.master": context.root, "kudu.table": TABLE}
    first = frame(spark, (1, 1, 1.0, "a"), (2, 2, 2.0, "b"))
    writer = first.write.format("kudulite").mode("append").options(**place)
    writer.option("kudu.operation", "insert").save()
    again = first.union(frame(spark, (3, 3, 3.0, "c"))).write.format("kudulite").mode("append")
    again = again.options(**place).option("kudu.operation", "insert-ignore")
    again.option("kudu.repartition", "true").option("kudu.repartition.sort", "true").save()
    options = {**place, "kudu.faultTolerantScan": "true", "kudu.scanRequestTimeoutMs": "60000"}
    read = spark.read.format("kudulite").options(**options).load()
    assert rows(read.select("id", "note")) == [(1, "a"), (2, "b"), (3, "c")]
    text = ", ".join(f"'{name}' '{value}'" for name, value in place.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW ported USING kudulite OPTIONS ({text})")
    spark.sql("INSERT INTO ported VALUES (4, 4, 4.0, 'd')")
    assert stored(f"{context.root}/{TABLE}")[-1] == (4, 4, 4.0, "d")
    with pytest.raises(PySparkException, match="addresses of servers"):
        spark.read.format("kudulite").options(**{**place, "kudu.master": "host:7051"}).load()


def test_deletes_alone_may_be_ordered(context):
    """The ordering column is taken with the keys, and what is older is dropped later."""
    spark = context.spark
    table = context.createTable("t", "id BIGINT, v STRING, seq BIGINT", ["id"])
    table.insert([{"id": 1, "v": "a", "seq": 1}, {"id": 2, "v": "b", "seq": 9}])
    types = "id LONG, seq LONG, v STRING"
    deletes = spark.createDataFrame([(1, 5, "x"), (2, 5, "x"), (3, 5, "x")], types)
    writer = deletes.write.format("kudulite").mode("append").option("operation", "delete")
    writer.option("orderingColumn", "seq").save(str(table.path))
    late = spark.sql("SELECT 'U' AS op, id, 'old' AS v, 4L AS seq FROM VALUES (1L), (3L) AS t(id)")
    writer = late.write.format("kudulite").mode("append").option("operationColumn", "op")
    writer.option("orderingColumn", "seq").save(str(table.path))
    assert stored(table.path) == [(2, "b", 9)]
    assert kudulite.open_table(str(table.path)).check().is_good
    assert "KuduContext" in kudulite_spark.__all__


def test_a_thread_that_python_has_started_reads_and_writes(spark, tmp_path):
    """Such a thread has no active session, so Spark would ask the default one for the format."""
    spark = spark.newSession()
    register_source(spark, KuduliteDataSource)  # without the front, which other tests would get
    context = KuduContext(spark, tmp_path)
    context.createTable("t", FIELDS, "id")

    def work() -> list[int]:
        context.insertRows(frame(spark, (1, 1, 1.0, "a")), "t")
        found = kudulite_spark.read_table(spark, context.root + "/t")
        return [found.count(), context.kuduRDD("t").count()]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == [1, 1]
