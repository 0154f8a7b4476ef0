"""kudulite: Apache Kudu's tablet storage engine as an embedded library.

    import kudulite
    client = kudulite.connect("/data/warehouse")

`__all__` lists the names that users may rely on. Everything else may change.

A name is imported when it is first used, because many processes need few of them: a worker of
Spark, for instance, or a command of the command line. `import kudulite` imports only the errors.
"""

import importlib
import typing

from kudulite import errors
from kudulite.errors import (
    ColumnNotFoundError,
    ConflictError,
    CorruptionError,
    FormatVersionError,
    KuduliteError,
    LockTimeoutError,
    NotFoundError,
    NotSupportedError,
    OptionError,
    OutOfMemoryError,
    RetryableError,
    RowError,
    SchemaError,
    StorageError,
    TableExistsError,
    TableNotFoundError,
    TimestampError,
    UsageError,
)

if typing.TYPE_CHECKING:
    __version__: str  # of the installed package

    from kudulite.backups.backup_job import BackupJob, BackupPiece, backup, begin_backup
    from kudulite.backups.backup_set import (
        Backup,
        list_backups,
        newest_backup,
        verify_backups,
    )
    from kudulite.backups.restore_job import RestoreJob, RestoreStep, begin_restore, restore
    from kudulite.chain.folder import SoftDeletedTable
    from kudulite.chain.manifest import TableVersion
    from kudulite.chain.partitioning import Partitioning, RangePartition
    from kudulite.client.bulk_write import BulkWrite, WriteResult
    from kudulite.client.client import Client, connect, open_table
    from kudulite.client.mutation_buffer import PendingError
    from kudulite.client.row_operations import WriteOperation
    from kudulite.client.session import Session, SessionCounters
    from kudulite.client.sql import SqlResult
    from kudulite.client.table import Table
    from kudulite.client.table_alterer import ColumnSpec, TableAlterer
    from kudulite.model.aliases import Columns, Key, Keys, Moment, Row, Rows, Where, WriteOptions
    from kudulite.model.condition import ColumnExpression, Condition, Predicate
    from kudulite.model.expression import Computed, expr
    from kudulite.model.hybrid_time import Timestamp, parse_timestamp
    from kudulite.model.new_schema import column, schema, schema_from_arrow
    from kudulite.model.predicate import parse_where
    from kudulite.model.schema import Column, PartialRow, Schema
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
    from kudulite.reads.native_plan import (
        NativeColumn,
        NativeCondition,
        NativeDisjunction,
        NativeFile,
        NativeLimits,
        NativePlan,
    )
    from kudulite.reads.native_scan import Scan
    from kudulite.reads.scan import Changes
    from kudulite.reads.tokens import (
        ChangeToken,
        RowSetToken,
        ScanToken,
        Token,
        pack_tokens,
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

# The module of each public name but the errors; a test compares it with the imports above.
_NAMES_OF = {
    "kudulite.backups.backup_job": ("BackupJob", "BackupPiece", "backup", "begin_backup"),
    "kudulite.backups.backup_set": ("Backup", "list_backups", "newest_backup", "verify_backups"),
    "kudulite.backups.restore_job": ("RestoreJob", "RestoreStep", "begin_restore", "restore"),
    "kudulite.chain.folder": ("SoftDeletedTable",),
    "kudulite.chain.manifest": ("TableVersion",),
    "kudulite.chain.partitioning": ("Partitioning", "RangePartition"),
    "kudulite.client.bulk_write": ("BulkWrite", "WriteResult"),
    "kudulite.client.client": ("Client", "connect", "open_table"),
    "kudulite.client.mutation_buffer": ("PendingError",),
    "kudulite.reads.native_plan": (
        "NativeColumn",
        "NativeCondition",
        "NativeDisjunction",
        "NativeFile",
        "NativeLimits",
        "NativePlan",
    ),
    "kudulite.reads.native_scan": ("Scan",),
    "kudulite.client.row_operations": ("WriteOperation",),
    "kudulite.reads.scan": ("Changes",),
    "kudulite.client.session": ("Session", "SessionCounters"),
    "kudulite.client.sql": ("SqlResult",),
    "kudulite.client.table": ("Table",),
    "kudulite.client.table_alterer": ("ColumnSpec", "TableAlterer"),
    "kudulite.reads.tokens": ("ChangeToken", "RowSetToken", "ScanToken", "Token", "pack_tokens"),
    "kudulite.model.aliases": (
        "Columns",
        "Key",
        "Keys",
        "Moment",
        "Row",
        "Rows",
        "Where",
        "WriteOptions",
    ),
    "kudulite.model.condition": ("ColumnExpression", "Condition", "Predicate"),
    "kudulite.model.expression": ("Computed", "expr"),
    "kudulite.model.hybrid_time": ("Timestamp", "parse_timestamp"),
    "kudulite.model.new_schema": ("column", "schema", "schema_from_arrow"),
    "kudulite.model.predicate": ("parse_where",),
    "kudulite.model.schema": ("Column", "PartialRow", "Schema"),
    "kudulite.model.types": (
        "ColumnType",
        "array",
        "binary",
        "bool_",
        "date",
        "decimal",
        "double",
        "float_",
        "int8",
        "int16",
        "int32",
        "int64",
        "parse_type",
        "string",
        "timestamp_ntz",
        "unixtime_micros",
        "varchar",
    ),
    "kudulite.storage.address": ("merged_storage_options",),
    "kudulite.storage.storage_options": ("is_secret_storage_option", "is_storage_option"),
    "kudulite.table.metrics": ("TableMetrics",),
    "kudulite.table.read_request": ("ReadRequest",),
    "kudulite.table.write_state": ("StagedTask",),
    "kudulite.tablet.operation": ("Operation", "parse_operation"),
    "kudulite.upkeep.check": ("CheckReport",),
    "kudulite.upkeep.garbage_collection": ("GarbageResult",),
    "kudulite.upkeep.layout": ("TableLayout",),
    "kudulite.upkeep.maintenance": ("MaintenanceResult",),
    "kudulite.upkeep.statistics": ("TableStatistics",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

# Names of kudu-python that only `kudulite.kudu` has, with what this package has instead.
_OF_KUDU_PYTHON = {
    "ColumnSchema": "kudulite.Column",
    "KuduError": "kudulite.PendingError",
    "KuduException": "kudulite.KuduliteError",
    "KuduBadStatus": "kudulite.KuduliteError",
    "KuduInvalidArgument": "kudulite.UsageError",
    "KuduNotFound": "kudulite.NotFoundError",
    "KuduNotSupported": "kudulite.NotSupportedError",
    "bool": "kudulite.bool_",
    "float": "kudulite.float_",
    "SchemaBuilder": "kudulite.schema([kudulite.column(…), …], primary_key=…)",
    "schema_builder": "kudulite.schema([kudulite.column(…), …], primary_key=…)",
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


def _installed_version() -> str:
    """Return the version of the installed package; "0+unknown" where only its folder is used."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version("kudulite"))
    except metadata.PackageNotFoundError:
        return "0+unknown"


if not typing.TYPE_CHECKING:  # a type checker reports unknown names itself

    def __getattr__(name: str) -> typing.Any:
        """Import a public name at its first use; for an unknown one say what to use."""
        if name in _MODULE_OF:
            found = getattr(importlib.import_module(_MODULE_OF[name]), name)
            globals()[name] = found
            return found
        if name == "__version__":
            return _installed_version()
        instead = _OF_KUDU_PYTHON.get(name)
        if name.startswith(_PREFIXES_OF_KUDU_PYTHON) or name in _CONSTANTS_OF_KUDU_PYTHON:
            instead = "the text of the choice, such as 'snapshot', 'manual' or 'lz4'"
        if instead is None:
            raise AttributeError(f"module 'kudulite' has no attribute {name!r}")
        raise AttributeError(
            f"kudulite has no {name}, a name of kudu-python; use {instead}, or import"
            f" kudulite.kudu as kudu, which has kudu.{name}"
        )


def __dir__() -> list[str]:
    """List the public names, imported or not, and what else the module has."""
    return sorted({*globals(), *__all__, "__version__"})


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
    "ColumnNotFoundError",
    "ColumnSpec",
    "ColumnType",
    "Columns",
    "Computed",
    "Condition",
    "ConflictError",
    "CorruptionError",
    "FormatVersionError",
    "GarbageResult",
    "Key",
    "Keys",
    "KuduliteError",
    "LockTimeoutError",
    "MaintenanceResult",
    "Moment",
    "NativeColumn",
    "NativeCondition",
    "NativeDisjunction",
    "NativeFile",
    "NativeLimits",
    "NativePlan",
    "NotFoundError",
    "NotSupportedError",
    "Operation",
    "OptionError",
    "OutOfMemoryError",
    "PartialRow",
    "Partitioning",
    "PendingError",
    "Predicate",
    "RangePartition",
    "ReadRequest",
    "RestoreJob",
    "RestoreStep",
    "RetryableError",
    "Row",
    "RowError",
    "RowSetToken",
    "Rows",
    "Scan",
    "ScanToken",
    "Schema",
    "SchemaError",
    "Session",
    "SessionCounters",
    "SoftDeletedTable",
    "SqlResult",
    "StagedTask",
    "StorageError",
    "Table",
    "TableAlterer",
    "TableExistsError",
    "TableLayout",
    "TableMetrics",
    "TableNotFoundError",
    "TableStatistics",
    "TableVersion",
    "Timestamp",
    "TimestampError",
    "Token",
    "UsageError",
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
    "column",
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
    "newest_backup",
    "open_table",
    "pack_tokens",
    "parse_operation",
    "parse_timestamp",
    "parse_type",
    "parse_where",
    "restore",
    "schema",
    "schema_from_arrow",
    "string",
    "timestamp_ntz",
    "unixtime_micros",
    "varchar",
    "verify_backups",
]
