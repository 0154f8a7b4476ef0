"""Client: what users import; everything below it may change.

`from kudulite.client import Partitioning` works as `from kudu.client import …` does: the names here
are of the client layer, and all of them are public names of `kudulite` too.
"""

from kudulite.client.client import Client
from kudulite.client.row_operations import (
    Delete,
    DeleteIgnore,
    Insert,
    InsertIgnore,
    Update,
    UpdateIgnore,
    Upsert,
    UpsertIgnore,
)
from kudulite.client.scanner import (
    CLOSEST_REPLICA,
    EXCLUSIVE_BOUND,
    FIRST_REPLICA,
    FLUSH_AUTO_BACKGROUND,
    FLUSH_AUTO_SYNC,
    FLUSH_MANUAL,
    INCLUSIVE_BOUND,
    LEADER_ONLY,
    READ_AT_SNAPSHOT,
    READ_LATEST,
    READ_YOUR_WRITES,
    Scanner,
)
from kudulite.client.schema_builder import Partitioning, RangePartition
from kudulite.client.session import Session
from kudulite.client.table import Table
from kudulite.client.table_alterer import TableAlterer
from kudulite.client.tokens import ScanToken, ScanTokenBuilder

__all__ = [
    "CLOSEST_REPLICA",
    "EXCLUSIVE_BOUND",
    "FIRST_REPLICA",
    "FLUSH_AUTO_BACKGROUND",
    "FLUSH_AUTO_SYNC",
    "FLUSH_MANUAL",
    "INCLUSIVE_BOUND",
    "LEADER_ONLY",
    "READ_AT_SNAPSHOT",
    "READ_LATEST",
    "READ_YOUR_WRITES",
    "Client",
    "Delete",
    "DeleteIgnore",
    "Insert",
    "InsertIgnore",
    "Partitioning",
    "RangePartition",
    "ScanToken",
    "ScanTokenBuilder",
    "Scanner",
    "Session",
    "Table",
    "TableAlterer",
    "Update",
    "UpdateIgnore",
    "Upsert",
    "UpsertIgnore",
]
