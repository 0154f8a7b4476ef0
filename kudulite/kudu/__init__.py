"""kudu-python's module, for programs that were written for it.

    import kudulite.kudu as kudu                     # was: import kudu
    from kudulite.kudu.client import Partitioning    # was: from kudu.client import Partitioning
    client = kudu.connect("/data/warehouse")         # or a host, with KUDULITE_DIRECTORY set

It has kudu-python's names, parameters, numbers, errors and texts, over the engine of `kudulite`:
both may use the same tables at once. docs/kudu_python.md lists what is deliberately different.

**Source**: Kudu python/kudu/__init__.py.
"""

import builtins
import os
import pathlib
import typing
from collections import abc

from kudulite.kudu import client, errors, schema, util
from kudulite.kudu.client import (
    CLIENT_SUPPORTS_DECIMAL,
    CLIENT_SUPPORTS_PANDAS,
    CLOSEST_REPLICA,
    ENCRYPTION_OPTIONAL,
    ENCRYPTION_REQUIRED,
    ENCRYPTION_REQUIRED_REMOTE,
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
    Client,
    Delete,
    DeleteIgnore,
    Insert,
    InsertIgnore,
    KuduError,
    RowBatch,
    Scanner,
    ScanToken,
    ScanTokenBuilder,
    Session,
    Table,
    TimeDelta,
    Update,
    UpdateIgnore,
    Upsert,
    UpsertIgnore,
)
from kudulite.kudu.errors import (
    KuduBadStatus,
    KuduException,
    KuduInvalidArgument,
    KuduNotFound,
    KuduNotSupported,
)
from kudulite.kudu.schema import (
    COMPRESSION_DEFAULT,
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_SNAPPY,
    COMPRESSION_ZLIB,
    ENCODING_AUTO,
    ENCODING_BIT_SHUFFLE,
    ENCODING_DICT,
    ENCODING_PLAIN,
    ENCODING_PREFIX,
    ENCODING_RLE,
    ColumnSchema,
    ColumnSpec,
    KuduType,
    Schema,
    SchemaBuilder,
    array_type,
    binary,
    bool_,
    date,
    decimal,
    float_,
    int8,
    int16,
    int32,
    int64,
    unixtime_micros,
    varchar,
)
from kudulite.kudu.schema import double_ as double
from kudulite.kudu.schema import string_ as string
from kudulite.kudu.sessions import DEFAULT_LIMITS as _DEFAULT_LIMITS
from kudulite.kudu.sessions import Limits as _Limits
from kudulite.model.condition import Predicate

# The environment variable with the directory of tables, for programs that connect to a host.
DIRECTORY_VARIABLE = "KUDULITE_DIRECTORY"
__version__ = "1.18.0"  # of kudu-python, whose interface this is
float, bool = float_, bool_


__all__ = [
    "CLIENT_SUPPORTS_DECIMAL",
    "CLIENT_SUPPORTS_PANDAS",
    "CLOSEST_REPLICA",
    "COMPRESSION_DEFAULT",
    "COMPRESSION_LZ4",
    "COMPRESSION_NONE",
    "COMPRESSION_SNAPPY",
    "COMPRESSION_ZLIB",
    "DIRECTORY_VARIABLE",
    "ENCODING_AUTO",
    "ENCODING_BIT_SHUFFLE",
    "ENCODING_DICT",
    "ENCODING_PLAIN",
    "ENCODING_PREFIX",
    "ENCODING_RLE",
    "ENCRYPTION_OPTIONAL",
    "ENCRYPTION_REQUIRED",
    "ENCRYPTION_REQUIRED_REMOTE",
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
    "ColumnSchema",
    "ColumnSpec",
    "Delete",
    "DeleteIgnore",
    "Insert",
    "InsertIgnore",
    "KuduBadStatus",
    "KuduError",
    "KuduException",
    "KuduInvalidArgument",
    "KuduNotFound",
    "KuduNotSupported",
    "KuduType",
    "Predicate",
    "RowBatch",
    "ScanToken",
    "ScanTokenBuilder",
    "Scanner",
    "Schema",
    "SchemaBuilder",
    "Session",
    "Table",
    "TimeDelta",
    "Update",
    "UpdateIgnore",
    "Upsert",
    "UpsertIgnore",
    "array_type",
    "binary",
    "bool",
    "bool_",
    "client",
    "connect",
    "date",
    "decimal",
    "double",
    "errors",
    "float",
    "float_",
    "int8",
    "int16",
    "int32",
    "int64",
    "schema",
    "schema_builder",
    "string",
    "timedelta",
    "unixtime_micros",
    "util",
    "varchar",
]


def connect(
    host: str | os.PathLike[str] | abc.Sequence[str | os.PathLike[str]],
    port: int | str | abc.Sequence[int | str] = 7051,
    admin_timeout_ms: int | None = None,
    rpc_timeout_ms: int | None = None,
    require_authentication: builtins.bool = False,
    encryption_policy: int = ENCRYPTION_OPTIONAL,
    jwt: str | None = None,
    trusted_certificates: typing.Any = None,
    *,
    max_num_columns: int = _DEFAULT_LIMITS.max_num_columns,
    max_cell_size_bytes: int = _DEFAULT_LIMITS.max_cell_size_bytes,
    max_encoded_key_size_bytes: int = _DEFAULT_LIMITS.max_encoded_key_size_bytes,
    array_cell_max_elem_num: int = _DEFAULT_LIMITS.array_cell_max_elem_num,
) -> Client:
    """Open a directory of tables, made if it is not there.

    `host` is the directory if it is a path: an `os.PathLike`, or text with a `/`. The directory of
    any other host, and of a list of hosts, is in the environment variable KUDULITE_DIRECTORY; it
    is the host itself if there is a directory of that name.

    `admin_timeout_ms` is how long a call waits for other writers of a tablet, 60 s if it is not
    given. Ports, `rpc_timeout_ms`, encryption and tokens have no effect: there is no network.

    The limits are those of Kudu's flags of these names: the columns of a table that this client
    creates or alters, and the cells, encoded keys and array elements of operations that its
    sessions apply.
    Raises ValueError for lists of hosts and ports that do not match, KuduBadStatus if there is no
    directory, and with `require_authentication`.
    """
    hosts = [host] if isinstance(host, str | os.PathLike) else list(host)
    are_ports_listed = not isinstance(port, int | str)
    if not hosts:
        raise ValueError("Empty list of hosts.")
    if are_ports_listed and isinstance(host, str | os.PathLike):
        raise ValueError("List of ports provided but only a single host.")
    if are_ports_listed and len(hosts) != len(port):  # type: ignore[arg-type]
        raise ValueError("Host and port lists are not of equal length.")
    if require_authentication:
        raise KuduBadStatus(
            "Not authorized: client requires authentication, but server does not have Kerberos"
            " enabled: a directory has permissions only"
        )
    seconds = 60.0 if admin_timeout_ms is None else admin_timeout_ms / 1000
    limits = _Limits(
        max_num_columns, max_cell_size_bytes, max_encoded_key_size_bytes, array_cell_max_elem_num
    )
    return Client(_directory_of(hosts), seconds, limits)


def _directory_of(hosts: abc.Sequence[str | os.PathLike[str]]) -> str | os.PathLike[str]:
    first = hosts[0]
    if len(hosts) == 1 and (isinstance(first, os.PathLike) or "/" in first):
        return first
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        return directory
    if len(hosts) == 1 and pathlib.Path(first).is_dir():
        return first
    raise KuduInvalidArgument(
        f"connect to {', '.join(map(str, hosts))}: kudulite has no servers. Give the path of a"
        f" directory of tables as host, or set the environment variable {DIRECTORY_VARIABLE}"
    )


def schema_builder() -> SchemaBuilder:
    """Return a new schema builder."""
    return SchemaBuilder()


def timedelta(
    seconds: builtins.float = 0, millis: int = 0, micros: int = 0, nanos: int = 0
) -> TimeDelta:
    """Return the sum of these lengths of time."""
    total = round(seconds * 1_000_000_000) + millis * 1_000_000 + micros * 1_000 + nanos
    return TimeDelta.from_nanos(total)
