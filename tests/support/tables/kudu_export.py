"""The export of a table of Kudu, as Spark and examples/import_from_kudu.py write it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HASHED = {"hash_partitions": [{"columns": ["id"], "num_buckets": 2, "seed": 7}]}


def export(folder: Path, name: str, ids: list[int], **more: object) -> Path:
    """The export of one table, in two files of rows."""
    columns = [
        {"column_name": "id", "column_type": "INT64", "is_nullable": False},
        {"column_name": "city", "column_type": "STRING", "compression": "LZ4"},
        {"column_name": "seen", "column_type": "UNIXTIME_MICROS"},
    ]
    definition = {
        "table_name": name,
        "schema": {"columns": columns, "key_column_names": ["id"]},
        "partition": HASHED,
        "owner": "ann",
        "extra_configs": {"configs": {"kudu.table.history_max_age_sec": "3600"}},
    } | more
    (folder / "data").mkdir(parents=True)
    (folder / "definition").mkdir()
    half = len(ids) // 2
    for number, part in enumerate((ids[:half], ids[half:])):
        rows = {
            "id": pa.array(part, pa.int64()),
            "city": [f"c{each}" for each in part],
            "seen": pa.array([each * 1000 for each in part], pa.timestamp("us", "UTC")),
        }
        pq.write_table(pa.table(rows), folder / "data" / f"part-0000{number}-{name[-1]}.parquet")
    (folder / "data" / "_SUCCESS").write_text("")
    (folder / "definition" / "_SUCCESS").write_text("")
    (folder / "definition" / "part-00000").write_text(json.dumps(definition))
    return folder
