"""kudulite: Apache Kudu's tablet storage engine as an embedded library.

    import kudulite
    client = kudulite.connect("/data/warehouse")

`__all__` lists the names that users may rely on. Everything else may change.
"""

import typing

from kudulite import errors
from kudulite.backups.backup_job import BackupJob, BackupPiece, backup, begin_backup
from kudulite.backups.backup_set import Backup, list_backups, verify_backups
from kudulite.backups.restore_job import RestoreJob, RestoreStep, begin_restore, restore
from kudulite.chain.folder import SoftDeletedTable
from kudulite.chain.manifest import TableVersion
from kudulite.client.bulk_write import BulkWrite, WriteResult
from kudulite.client.client import Client, connect, open_table
from kudulite.client.mutation_buffer import PendingError
from kudulite.client.native_plan import (
    NativeColumn,
    NativeCondition,
    NativeDisjunction,
    NativeFile,
    NativeLimits,
    NativePlan,
)
from kudulite.client.native_scan import Scan
from kudulite.client.row_operations import WriteOperation
from kudulite.client.scan import Changes
from kudulite.client.schema_builder import ColumnSpec, Partitioning, RangePartition, SchemaBuilder
from kudulite.client.session import Session, SessionCounters
from kudulite.client.sql import SqlResult
from kudulite.client.table import Table
from kudulite.client.table_alterer import TableAlterer
from kudulite.client.tokens import (
    ChangeToken,
    RowSetToken,
    ScanToken,
    Token,
    pack_tokens,
)
from kudulite.errors import (
    KuduBadStatus,
    KuduException,
    KuduInvalidArgument,
    KuduNotFound,
    KuduNotSupported,
)
from kudulite.model.aliases import Columns, Key, Keys, Moment, Row, Rows, Where, WriteOptions
from kudulite.model.condition import ColumnExpression, Condition, Predicate
from kudulite.model.expression import Computed, expr
from kudulite.model.hybrid_time import Timestamp, parse_timestamp
from kudulite.model.predicate import parse_where
from kudulite.model.schema import Column, PartialRow, Schema, schema_from_arrow
from kudulite.model.types import (
    ColumnType,
    array,
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
from kudulite.storage.address import merged_storage_options
from kudulite.storage.storage_options import is_secret_storage_option, is_storage_option
from kudulite.table.metrics import TableMetrics
from kudulite.table.read_request import ReadRequest
from kudulite.table.write_state import StagedTask
from kudulite.tablet.operation import Operation, parse_operation
from kudulite.upkeep.check import CheckReport
from kudulite.upkeep.garbage_collection import GarbageResult
from kudulite.upkeep.layout import TableLayout
from kudulite.upkeep.maintenance import MaintenanceResult
from kudulite.upkeep.statistics import TableStatistics

__version__ = "0.1.0"

schema_builder = SchemaBuilder

# Names of kudu-python that only `kudulite.kudu` has, with what this package has instead.
_OF_KUDU_PYTHON = {
    "ColumnSchema": "kudulite.Column",
    "KuduError": "kudulite.PendingError",
    "bool": "kudulite.bool_",
    "float": "kudulite.float_",
    "Scanner": "table.scan(…)",
    "RowBatch": "table.scan(…)",
    "ScanTokenBuilder": "table.scan_tokens(…)",
    "Insert": "table.new_insert(…)",
    "InsertIgnore": "table.new_insert_ignore(…)",
    "Upsert": "table.new_upsert(…)",
    "UpsertIgnore": "table.new_upsert_ignore(…)",
    "Update": "table.new_update(…)",
    "UpdateIgnore": "table.new_update_ignore(…)",
    "Delete": "table.new_delete(…)",
    "DeleteIgnore": "table.new_delete_ignore(…)",
}
_PREFIXES_OF_KUDU_PYTHON = ("READ_", "FLUSH_", "COMPRESSION_", "ENCODING_")
_CONSTANTS_OF_KUDU_PYTHON = (
    *("LEADER_ONLY", "CLOSEST_REPLICA", "FIRST_REPLICA"),
    *("EXCLUSIVE_BOUND", "INCLUSIVE_BOUND"),
)

if not typing.TYPE_CHECKING:  # a type checker reports unknown names itself

    def __getattr__(name: str) -> typing.NoReturn:
        instead = _OF_KUDU_PYTHON.get(name)
        if name.startswith(_PREFIXES_OF_KUDU_PYTHON) or name in _CONSTANTS_OF_KUDU_PYTHON:
            instead = "the text of the choice, such as 'snapshot', 'manual' or 'lz4'"
        if instead is None:
            raise AttributeError(f"module 'kudulite' has no attribute {name!r}")
        raise AttributeError(
            f"kudulite has no {name}, a name of kudu-python; use {instead}, or import"
            f" kudulite.kudu as kudu, which has kudu.{name}"
        )


__all__ = [
    "Backup",
    "BackupJob",
    "BackupPiece",
    "BulkWrite",
    "ChangeToken",
    "Changes",
    "CheckReport",
    "Client",
    "Column",
    "ColumnExpression",
    "ColumnSpec",
    "ColumnType",
    "Columns",
    "Computed",
    "Condition",
    "GarbageResult",
    "Key",
    "Keys",
    "KuduBadStatus",
    "KuduException",
    "KuduInvalidArgument",
    "KuduNotFound",
    "KuduNotSupported",
    "MaintenanceResult",
    "Moment",
    "NativeColumn",
    "NativeCondition",
    "NativeDisjunction",
    "NativeFile",
    "NativeLimits",
    "NativePlan",
    "Operation",
    "PartialRow",
    "Partitioning",
    "PendingError",
    "Predicate",
    "RangePartition",
    "ReadRequest",
    "RestoreJob",
    "RestoreStep",
    "Row",
    "RowSetToken",
    "Rows",
    "Scan",
    "ScanToken",
    "Schema",
    "SchemaBuilder",
    "Session",
    "SessionCounters",
    "SoftDeletedTable",
    "SqlResult",
    "StagedTask",
    "Table",
    "TableAlterer",
    "TableLayout",
    "TableMetrics",
    "TableStatistics",
    "TableVersion",
    "Timestamp",
    "Token",
    "Where",
    "WriteOperation",
    "WriteOptions",
    "WriteResult",
    "array",
    "backup",
    "begin_backup",
    "begin_restore",
    "binary",
    "bool_",
    "connect",
    "date",
    "decimal",
    "double",
    "errors",
    "expr",
    "float_",
    "int8",
    "int16",
    "int32",
    "int64",
    "is_secret_storage_option",
    "is_storage_option",
    "list_backups",
    "merged_storage_options",
    "open_table",
    "pack_tokens",
    "parse_operation",
    "parse_timestamp",
    "parse_type",
    "parse_where",
    "restore",
    "schema_builder",
    "schema_from_arrow",
    "string",
    "timestamp_ntz",
    "unixtime_micros",
    "varchar",
    "verify_backups",
]
