"""Copy tables from a running Kudu cluster, with their columns, keys, partitions and rows.

    spark-submit --packages org.apache.kudu:kudu-spark3_2.12:1.17.1 \
        import_from_kudu.py export kudu-1:7051,kudu-2:7051 /shared/exports
    kudulite import-kudu --dry-run /shared/exports /data/warehouse
    kudulite import-kudu /shared/exports /data/warehouse

There are two steps, because kudu-spark is made for Spark 3 and kudulite for Spark 4.
`export` runs on a cluster that reaches Kudu, and needs no kudulite there. For each table it writes
the rows as Parquet, all as of one moment, and the definition of the table as JSON, in the form of
`kudu table create`. `import-kudu` runs where kudulite is installed: it creates the tables by their
definitions and inserts the rows of each in one commit. It can be repeated.

One table alone, and one that is too large to be loaded by one process:

    … import_from_kudu.py export kudu-1:7051,kudu-2:7051 impala::db.t /shared/t
    python import_from_kudu.py load /shared/t /data/warehouse/t

`load` is a PySpark job that does for one table what `import-kudu` does, each tablet by one task.
Without arguments the script rehearses it, with an export that it makes itself. Rows of a key that
is not unique keep their ids.

Not copied: replicas, block sizes and quotas.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

RANGE_TIMEOUT_MS = 60_000


def main(arguments: list[str]) -> None:
    """Run one of the two steps, or rehearse the second."""
    if arguments[:1] == ["export"] and len(arguments) == 3:
        export_all(*arguments[1:])
    elif arguments[:1] == ["export"] and len(arguments) == 4:
        master, table_name, target = arguments[1:]
        export(kudu_client(master), master, table_name, target, int(time.time() * 1000))
    elif arguments[:1] == ["load"] and len(arguments) == 3:
        load(Path(arguments[1]), Path(arguments[2]))
    elif not arguments:
        with tempfile.TemporaryDirectory(prefix="kudulite-import-") as folder:
            rehearse(Path(folder))
    else:
        sys.exit(__doc__)


# -- where Kudu is


def export_all(master: str, target: str) -> None:
    """Export all tables, as of one moment, each to a folder of `target`; name those that fail."""
    client, moment, failed = kudu_client(master), int(time.time() * 1000), []
    for name in client.getTablesList().getTablesList():
        try:
            export(client, master, name, f"{target}/{folder_of(name)}", moment)
            print(f"{name}: exported")
        except Exception as error:  # of Kudu, of Spark or of Java: the other tables are exported
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
    if failed:
        sys.exit(f"{len(failed)} tables were not exported: {', '.join(failed)}")


def folder_of(table_name: str) -> str:
    """Return the name of a table's folder: Hadoop allows no colons; the sum keeps names apart."""
    return f"{re.sub('[^A-Za-z0-9_.-]', '_', table_name)}-{zlib.crc32(table_name.encode()):08x}"


def kudu_client(master: str) -> Any:
    """Return a client of Kudu's Java library."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("export from Kudu").getOrCreate()
    return spark._jvm.org.apache.kudu.client.KuduClient.KuduClientBuilder(master).build()


def export(client: Any, master: str, table_name: str, target: str, moment_ms: int) -> None:
    """Write the rows of a Kudu table to `target`/data, and its definition beside them."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    options = {
        "kudu.master": master,
        "kudu.table": table_name,
        "kudu.snapshotTimestampMs": str(moment_ms),
    }
    rows = spark.read.format("kudu").options(**options).load()
    write_rows(rows, target)
    text = json.dumps(definition_of(client.openTable(table_name)), indent=2)
    # As a file of Spark, because the target may be a store that only Spark knows. It is the last:
    # an export without it was interrupted.
    spark.sparkContext.parallelize([text], 1).saveAsTextFile(f"{target}/definition")


def write_rows(rows: Any, target: str) -> None:
    """Write a Spark DataFrame to `target`/data, with its times and days as they are."""
    # Spark 3 writes times as INT96 by default, and refuses those before 1900 and days before 1582.
    settings = rows.sparkSession.conf
    settings.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    settings.set("spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED")
    rows.write.mode("overwrite").parquet(f"{target}/data")


def definition_of(table: Any) -> "dict[str, Any]":
    """Return the definition of a `KuduTable` of Kudu's Java client."""
    schema, partition = table.getSchema(), table.getPartitionSchema()
    names = [column.getName() for column in schema.getColumns()]

    def named(column_ids: Any) -> "list[str]":
        return [names[schema.getColumnIndex(column_id)] for column_id in column_ids]

    def hash_forms(hash_schemas: Any) -> "list[dict[str, Any]]":
        return [
            {
                "columns": named(each.getColumnIds()),
                "num_buckets": each.getNumBuckets(),
                "seed": each.getSeed(),
            }
            for each in hash_schemas
        ]

    range_columns = named(partition.getRangeSchema().getColumnIds())
    own = [
        (bound_values(field(each, "lowerBound"), range_columns), field(each, "hashSchemas"))
        for each in partition.getRangesWithHashSchemas()
    ]
    plain, custom = [], []
    for bounds in range_forms(table, range_columns):
        lower = bounds.get("lower_bound", {}).get("bound_values", [])
        found = [hashes for values, hashes in own if lower[: len(values)] == values]
        if len(found) > 1:
            raise ValueError(f"{len(found)} hash schemas begin at the lower bound {lower}")
        if found:
            custom.append({"range_bounds": bounds, "hash_schema": hash_forms(found[0])})
        else:
            plain.append(bounds)
    return {
        "table_name": table.getName(),
        "schema": {
            "columns": [column_form(column) for column in schema.getColumns()],
            "key_column_names": [column.getName() for column in schema.getPrimaryKeyColumns()],
        },
        "partition": {
            "hash_partitions": hash_forms(partition.getHashBucketSchemas()),
            "range_partition": {
                "columns": range_columns,
                "range_bounds": plain,
                "custom_hash_schema_ranges": custom,
            },
        },
        "owner": table.getOwner() or None,
        "comment": table.getComment() or None,
    }


def column_form(column: Any) -> "dict[str, Any]":
    """Return one column as a definition has it."""
    form = {
        "column_name": column.getName(),
        "column_type": column.getType().name(),
        "is_nullable": column.isNullable(),
        "is_mutable": not column.isImmutable(),
        "comment": column.getComment() or "",
    }
    if column.getEncoding() is not None:
        form["encoding"] = column.getEncoding().name()
    if column.getCompressionAlgorithm() is not None:
        form["compression"] = column.getCompressionAlgorithm().name()
    attributes, kind = column.getTypeAttributes(), column.getType().name()
    if kind == "DECIMAL":
        form["type_attributes"] = {
            "precision": attributes.getPrecision(),
            "scale": attributes.getScale(),
        }
    if kind == "VARCHAR":
        form["type_attributes"] = {"length": attributes.getLength()}
    if column.getDefaultValue() is not None:
        form["default_value"] = text_of(column.getDefaultValue())
    return form


def range_forms(table: Any, columns: "list[str]") -> "list[dict[str, Any]]":
    """Return the bounds of the range partitions; a range over everything has none."""
    if not columns:
        return []
    forms = []
    for each in table.getRangePartitions(RANGE_TIMEOUT_MS):
        form = {}
        if len(each.getRangeKeyStart()):
            values = bound_values(each.getDecodedRangeKeyStart(table), columns)
            form["lower_bound"] = {"bound_type": "INCLUSIVE", "bound_values": values}
        if len(each.getRangeKeyEnd()):
            values = bound_values(each.getDecodedRangeKeyEnd(table), columns)
            form["upper_bound"] = {"bound_type": "EXCLUSIVE", "bound_values": values}
        if form:
            forms.append(form)
    return forms


def bound_values(row: Any, columns: "list[str]") -> "list[str]":
    """Return the cells of a bound that are set; those of a bound without end are not."""
    return [cell_text(row, name) for name in columns if row.isSet(name)]


def field(java_object: Any, name: str) -> Any:
    """Return the value of a public field of a Java object."""
    from py4j.java_gateway import get_field

    return get_field(java_object, name)


def cell_text(row: Any, name: str) -> str:
    """Return a cell of a `PartialRow` as text; moments are microseconds."""
    if row.getSchema().getColumn(name).getType().name() == "UNIXTIME_MICROS":
        return str(row.getLong(name))
    return text_of(row.getObject(name))


def text_of(value: Any) -> str:
    """Return a value as a definition has it: bytes are hexadecimal, dates are ISO 8601."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    return str(value)  # numbers, text, decimals, and `toString` of a java.sql.Date


# -- where kudulite is


def load(source: Path, target: Path) -> None:
    """Create the table `target` by the definition in `source`, and insert the rows."""
    import kudulite
    import kudulite_spark

    (definition,) = (source / "definition").glob("part-*")
    if not kudulite.connect(target.parent).table_exists(target.name):
        program = Path(sys.executable).with_name("kudulite")
        create = [str(program), "create", str(target), "--definition", str(definition)]
        subprocess.run(create, check=True)
    spark = kudulite_spark.local_session()
    rows = spark.read.parquet(str(source / "data"))
    routed = kudulite_spark.repartition_for(rows, str(target))
    # An insert gives new ids; an upsert keeps those that rows of a key that is not unique have.
    operation = "upsert" if "auto_incrementing_id" in rows.columns else "insert"
    writer = routed.write.format("kudulite").mode("append").option("operation", operation)
    # The id makes the commit happen once, however often the job is run.
    writer.option("applicationId", f"import of {source}").option("applicationVersion", "1").save(
        str(target)
    )
    expected, found = rows.count(), kudulite.open_table(target).live_row_count
    if found != expected:
        raise AssertionError(f"{target} has {found} rows, {source} has {expected}")
    print(f"{target}: {found} rows")


def rehearse(folder: Path) -> None:
    """Load an export of a table with a key of two columns, hash partitions and two ranges."""
    import kudulite
    import kudulite_spark

    bounds = [{"bound_type": kind, "bound_values": ["50"]} for kind in ("EXCLUSIVE", "INCLUSIVE")]
    definition = {
        "schema": {
            "columns": [
                {"column_name": "host", "column_type": "STRING", "is_nullable": False},
                {"column_name": "n", "column_type": "INT32", "is_nullable": False},
                {"column_name": "load", "column_type": "DOUBLE", "encoding": "BIT_SHUFFLE"},
            ],
            "key_column_names": ["host", "n"],
        },
        "partition": {
            "hash_partitions": [{"columns": ["host"], "num_buckets": 2, "seed": 0}],
            "range_partition": {
                "columns": ["n"],
                "range_bounds": [{"upper_bound": bounds[0]}, {"lower_bound": bounds[1]}],
            },
        },
    }
    (folder / "export" / "definition").mkdir(parents=True)
    (folder / "export" / "definition" / "part-00000").write_text(json.dumps(definition))
    spark = kudulite_spark.local_session()
    rows = spark.sql("SELECT 'h' || id % 7 AS host, int(id) AS n, id / 2 AS load FROM range(100)")
    rows.write.parquet(str(folder / "export" / "data"))
    target = folder / "warehouse" / "t"
    for _ in range(2):
        load(folder / "export", target)
    table = kudulite.open_table(target)
    assert table.schema.key_names == ["host", "n"]
    assert table.tablet_count == 4
    assert table.get(("h1", 50)) == {"host": "h1", "n": 50, "load": 25.0}


if __name__ == "__main__":
    main(sys.argv[1:])
