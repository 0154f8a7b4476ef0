"""kudulite: Apache Kudu's tablet storage engine as an embedded library.

    import kudulite as kudu
    client = kudu.connect("/data/warehouse")

What stands in `__all__` is what users may rely on; everything else may change.
"""

from kudulite import errors
from kudulite.catalog.bulk_write import StagedTask
from kudulite.catalog.check import CheckReport
from kudulite.catalog.sweep import SweepResult
from kudulite.client.bulk_write import BulkWrite, WriteResult
from kudulite.client.client import Client, connect, open_table
from kudulite.client.partitioning import Partitioning
from kudulite.client.scan import Scan
from kudulite.client.scan_token import ScanToken, pack_tokens
from kudulite.client.schema_builder import SchemaBuilder
from kudulite.client.table import Table, TableStatistics
from kudulite.model.predicate import ColumnExpression, Predicate
from kudulite.model.schema import Column, Schema, schema_from_arrow
from kudulite.model.types import (
    ColumnType,
    binary,
    bool_,
    date,
    decimal,
    double,
    float_,
    int8,
    int16,
    int32,
    int64,
    parse_type,
    string,
    timestamp_ntz,
    unixtime_micros,
    varchar,
)
from kudulite.mvcc.hybrid_time import parse_timestamp

__version__ = "0.1.0"

schema_builder = SchemaBuilder

__all__ = [
    "BulkWrite",
    "CheckReport",
    "Client",
    "Column",
    "ColumnExpression",
    "ColumnType",
    "Partitioning",
    "Predicate",
    "Scan",
    "ScanToken",
    "Schema",
    "SchemaBuilder",
    "StagedTask",
    "SweepResult",
    "Table",
    "TableStatistics",
    "WriteResult",
    "binary",
    "bool_",
    "connect",
    "date",
    "decimal",
    "double",
    "errors",
    "float_",
    "int8",
    "int16",
    "int32",
    "int64",
    "open_table",
    "pack_tokens",
    "parse_timestamp",
    "parse_type",
    "schema_builder",
    "schema_from_arrow",
    "string",
    "timestamp_ntz",
    "unixtime_micros",
    "varchar",
]
