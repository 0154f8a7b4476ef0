"""kudu-python's client: the engine's classes with its names, numbers, errors and texts.

    client = kudu.connect("/data/warehouse")        a Client; see the package for `connect`
    table = client.table("metrics")                 a Table; `table.engine` is the engine's
    session.apply(table.new_insert({"a": 1}))       cells are converted by `cell_of`
    table.scanner().add_predicate(table["a"] > 0).open().read_all_tuples()

A Client, a Table and a TableAlterer each hold one of the engine's. A client and a table have it as
`engine`, with all that kudu-python lacks. There is no second engine: what a program of kudu-python
writes, any other reads. Errors are those of `kudulite.kudu.errors`.

**Threads**: as of the engine's classes.

**Source**: Kudu python/kudu/client.pyx.
"""

from __future__ import annotations

import functools
import importlib.util
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import kudulite.client.client as engine_client
from kudulite.client import table as engine_table
from kudulite.client import table_alterer as engine_alterer
from kudulite.client.row_operations import RowOperations, WriteOperation
from kudulite.errors import TableExistsError, TableNotFoundError
from kudulite.kudu.errors import (
    KuduBadStatus,
    KuduInvalidArgument,
    KuduNotFound,
    in_kudu_terms,
)
from kudulite.kudu.partitioning import (
    EXCLUSIVE_BOUND,
    INCLUSIVE_BOUND,
    Partitioning,
    RangePartition,
    bound_of,
    bound_type,
    custom_range,
)
from kudulite.kudu.scanner import (
    CLOSEST_REPLICA,
    FIRST_REPLICA,
    LEADER_ONLY,
    READ_AT_SNAPSHOT,
    READ_LATEST,
    READ_YOUR_WRITES,
    Column,
    RowBatch,
    Scanner,
)
from kudulite.kudu.schema import ColumnSpec, PartialRow, Schema, SchemaBuilder, column_spec
from kudulite.kudu.servers import Replica, Tablet, TabletServer
from kudulite.kudu.sessions import (
    DEFAULT_LIMITS,
    FLUSH_AUTO_BACKGROUND,
    FLUSH_AUTO_SYNC,
    FLUSH_MANUAL,
    OPERATIONS,
    Delete,
    DeleteIgnore,
    Insert,
    InsertIgnore,
    KuduError,
    Limits,
    Session,
    Update,
    UpdateIgnore,
    Upsert,
    UpsertIgnore,
)
from kudulite.kudu.tokens import ScanToken, ScanTokenBuilder, TokenScanner
from kudulite.model.condition import Predicate
from kudulite.reads import tokens
from kudulite.tablet.operation import Operation
from kudulite.upkeep.alter import TableDraft

CLIENT_SUPPORTS_DECIMAL = True
CLIENT_SUPPORTS_PANDAS = importlib.util.find_spec("pandas") is not None
ENCRYPTION_OPTIONAL, ENCRYPTION_REQUIRED_REMOTE, ENCRYPTION_REQUIRED = 0, 1, 2

__all__ = [
    "CLIENT_SUPPORTS_DECIMAL",
    "CLIENT_SUPPORTS_PANDAS",
    "CLOSEST_REPLICA",
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
    "Column",
    "Delete",
    "DeleteIgnore",
    "Insert",
    "InsertIgnore",
    "KuduError",
    "PartialRow",
    "Partitioning",
    "Predicate",
    "RangePartition",
    "Replica",
    "RowBatch",
    "ScanToken",
    "ScanTokenBuilder",
    "Scanner",
    "Session",
    "Table",
    "TableAlterer",
    "TableStatistics",
    "Tablet",
    "TabletServer",
    "TimeDelta",
    "TokenScanner",
    "Update",
    "UpdateIgnore",
    "Upsert",
    "UpsertIgnore",
]


# -- times


@functools.total_ordering
class TimeDelta:
    """A length of time in nanoseconds; make one with `kudu.timedelta`."""

    def __init__(self) -> None:
        self._nanos: int | None = None

    @staticmethod
    def from_nanos(nanos: int) -> TimeDelta:
        """Return a delta of so many nanoseconds."""
        delta = TimeDelta()
        delta._nanos = int(nanos)
        return delta

    @staticmethod
    def from_micros(us: int) -> TimeDelta:
        """Return a delta of so many microseconds."""
        return TimeDelta.from_nanos(us * 1_000)

    @staticmethod
    def from_millis(ms: int) -> TimeDelta:
        """Return a delta of so many milliseconds."""
        return TimeDelta.from_nanos(ms * 1_000_000)

    @staticmethod
    def from_seconds(seconds: float) -> TimeDelta:
        """Return a delta of so many seconds."""
        return TimeDelta.from_nanos(round(seconds * 1_000_000_000))

    def to_nanos(self) -> int:
        """Return the nanoseconds."""
        return self._nanos or 0

    def to_micros(self) -> int:
        """Return the whole microseconds."""
        return self.to_nanos() // 1_000

    def to_millis(self) -> int:
        """Return the whole milliseconds."""
        return self.to_nanos() // 1_000_000

    def to_seconds(self) -> float:
        """Return the seconds."""
        return self.to_nanos() / 1_000_000_000

    def __repr__(self) -> str:
        return (
            "kudu.TimeDelta()"
            if self._nanos is None
            else f"kudu.TimeDelta({self.to_seconds():.3f}s)"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeDelta) and self.to_nanos() == other.to_nanos()

    def __lt__(self, other: TimeDelta) -> bool:
        return self.to_nanos() < other.to_nanos()

    def __hash__(self) -> int:
        return hash(self.to_nanos())


# -- tables


@dataclass(frozen=True)
class TableStatistics:
    """Size and rows of a table; -1 where there is no limit, and there never is one."""

    on_disk_size: int
    live_row_count: int
    on_disk_size_limit: int = -1
    live_row_count_limit: int = -1

    def __repr__(self) -> str:
        figures = ((name.replace("_", " "), value) for name, value in vars(self).items())
        return "".join(f"{name}: {'N/A' if value < 0 else value}\n" for name, value in figures)


@in_kudu_terms
class Table(RowOperations):
    """One table; `engine` is the engine's, which has all that kudu-python lacks."""

    num_replicas = 1

    def __init__(self, table: engine_table.Table, parent: Client) -> None:
        self.engine = table
        self.parent = parent
        self.limits = parent.limits
        self.id = table.id  # also after the table was deleted: `Client.recall_table` takes it
        self._store = engine_table.store_of(table)

    def __repr__(self) -> str:
        return f"<kudulite table {self.name!r} at {self.engine.path}>"

    # `for column in table` would end in an error; see `schema`.
    __iter__ = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the directory and the name: unpickling opens the table again."""
        return _opened, (self.engine.path.parent, self.name)

    if not TYPE_CHECKING:  # a type checker reports unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_attribute(self, name, engine_table.Table)

    @property
    def name(self) -> str:
        """The table's name."""
        return self.engine.name

    @property
    def schema(self) -> Schema:
        """The table's columns, key columns first."""
        return Schema(self.engine.schema)

    @property
    def owner(self) -> str:
        """The name of the table's owner, empty if it has none."""
        return self.engine.owner

    @property
    def comment(self) -> str:
        """The table's comment, empty if it has none."""
        return self.engine.comment

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return self.engine.num_columns

    def __getitem__(self, key: str | int) -> Column:
        """Return a column to compare: `table["host"] == "a"`."""
        return Column(self, self.schema[key])

    def scanner(self) -> Scanner:
        """Return a scanner to set up, open, and read."""
        return Scanner(self.engine)

    def scan_token_builder(self) -> ScanTokenBuilder:
        """Return a builder of scan tokens to set up."""
        return ScanTokenBuilder(self.engine)

    def _new_operation(self, operation: Operation, record: Any) -> WriteOperation:
        return OPERATIONS[operation](self, record)


def _no_attribute(held: Table | Client, name: str, engine: type) -> AttributeError:
    """Return the error for a name that is not kudu-python's; one of the engine's is in `engine`."""
    kind = type(held).__name__
    if not hasattr(engine, name):
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    word = kind.lower()
    return AttributeError(
        f"a {word} of kudu-python has no {name}; use {word}.engine.{name}, of the kudulite.{kind}"
    )


def _opened(root: Path, name: str) -> Table:
    return Client(root).table(name)


@in_kudu_terms
class TableAlterer:
    """Alters one table; made by `Client.new_table_alterer`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._alterer = engine_alterer.TableAlterer(table.engine)

    def __repr__(self) -> str:
        return repr(self._alterer)

    def rename(self, table_name: str) -> TableAlterer:
        """Give the table another name."""
        alterer = self._alterer
        alterer.rename(table_name)
        return self

    def add_column(
        self,
        name: str,
        type_: object = None,
        nullable: bool | None = None,
        compression: str | int | None = None,
        encoding: str | int | None = None,
        default: Any = None,
        mutable: bool | None = None,
    ) -> ColumnSpec:
        """Add a column, nullable and mutable unless said otherwise; return its spec to refine."""
        spec = column_spec(name, type_, nullable, compression, encoding, default)
        if mutable is not None:
            spec.mutable(mutable)

        def add(draft: TableDraft) -> TableDraft:
            self._table.limits.check_columns(len(draft.schema.columns) + 1)
            return draft.add_column(spec.build())

        self._alterer._steps.append(add)
        return spec

    def alter_column(self, name: str, rename_to: str | None = None) -> ColumnSpec:
        """Change a column by the spec that is returned."""
        spec = ColumnSpec(name)
        if rename_to:
            spec.rename(rename_to)
        self._alterer._alter_by(spec)
        return spec

    def drop_column(self, name: str) -> TableAlterer:
        """Drop a column that is not part of the key."""
        self._alterer.drop_column(name)
        return self

    def add_range_partition(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str | int = "inclusive",
        upper_bound_type: str | int = "exclusive",
    ) -> TableAlterer:
        """Add an empty range."""
        kinds = bound_type(lower_bound_type), bound_type(upper_bound_type)
        self._alterer.add_range_partition(
            self._bound(lower_bound), self._bound(upper_bound), *kinds
        )
        return self

    def add_custom_range_partition(self, range_partition: Any) -> TableAlterer:
        """Add an empty range that has hash partitions of its own, a RangePartition."""
        columns = self._table.engine.schema.columns
        self._alterer.add_custom_range_partition(custom_range(range_partition, columns))
        return self

    def drop_range_partition(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str | int = "inclusive",
        upper_bound_type: str | int = "exclusive",
    ) -> TableAlterer:
        """Drop the range with exactly these bounds."""
        kinds = bound_type(lower_bound_type), bound_type(upper_bound_type)
        self._alterer.drop_range_partition(
            self._bound(lower_bound), self._bound(upper_bound), *kinds
        )
        return self

    def _bound(self, given: Any) -> dict[str, Any] | None:
        return bound_of(self._table.engine.schema.columns, given)

    def set_owner(self, new_owner: str) -> TableAlterer:
        """Name the table's owner, a text that nothing is enforced by."""
        self._alterer.set_owner(_given_text(new_owner))
        return self

    def set_comment(self, new_comment: str) -> TableAlterer:
        """Set the table's comment."""
        self._alterer.set_comment(_given_text(new_comment))
        return self

    def alter(self) -> Table:
        """Apply the steps, all or none, and return the table."""
        return Table(self._alterer.alter(), self._table.parent)


def _given_text(text: str) -> str:
    if not isinstance(text, str):
        raise TypeError(f"expected str, got {type(text).__name__}")
    return text


@in_kudu_terms
class Client:
    """The tables under one directory; made by `kudu.connect`. `engine` is the engine's client."""

    def __init__(
        self,
        root: str | PathLike[str],
        lock_timeout_seconds: float = 60.0,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self.engine = engine_client.connect(root, lock_timeout_seconds=lock_timeout_seconds)
        self.limits = limits

    def __repr__(self) -> str:
        return repr(self.engine)

    if not TYPE_CHECKING:  # a type checker reports unknown names itself

        def __getattr__(self, name: str) -> NoReturn:
            raise _no_attribute(self, name, engine_client.Client)

    def close(self) -> None:
        """Flush the memory that rows of this process take; the client stays usable.

        Raises KuduInvalidArgument if a manual session holds rows that it has not flushed.
        """
        self.engine.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.engine.__exit__(kind, error, traceback)

    @property
    def is_multimaster(self) -> bool:
        """Whether there are several masters: there is none."""
        return False

    def schema_builder(self) -> SchemaBuilder:
        """Return a new schema builder."""
        return SchemaBuilder()

    def new_session(
        self, flush_mode: str | int = "manual", timeout_ms: float | None = 5000, **options: Any
    ) -> Session:
        """Return a session; the options are `mutation_buffer_sz` and the like of `Session`."""
        return Session(flush_mode, timeout_ms, **options)

    def list_tables(self, match_substring: str | None = None) -> list[str]:
        """Return the names of the tables, sorted; of those that contain `match_substring`."""
        return self.engine.list_tables(match_substring)

    def table_exists(self, table_name: str) -> bool:
        """Whether there is a table of this name."""
        return self.engine.table_exists(table_name)

    def latest_observed_timestamp(self) -> datetime:
        """Return a moment that shows all that was written to the tables so far, by anybody."""
        return self.engine.latest_observed_timestamp()

    def table(self, table_name: str) -> Table:
        """Open a table. Raises KuduNotFound."""
        try:
            return Table(self.engine.table(table_name), self)
        except TableNotFoundError as error:
            raise KuduNotFound(
                f'the table does not exist: table_name: "{table_name}"; {error}'
            ) from error

    def create_table(
        self,
        table_name: str,
        schema: Schema,
        partitioning: Partitioning,
        n_replicas: int | None = None,
        owner: str | None = None,
        comment: str | None = None,
    ) -> Table:
        """Create an empty table and return it. `n_replicas` is checked and has no effect.

        Raises KuduInvalidArgument, and KuduBadStatus if there is a table of this name.
        """
        if not isinstance(schema, Schema) or schema.engine_schema is None:
            raise TypeError(f"expected the Schema of a schema builder, got {schema!r}")
        for problem in schema.misfits:
            raise KuduInvalidArgument(problem)
        self.limits.check_columns(len(schema))
        if n_replicas is not None and n_replicas > 0 and n_replicas % 2 == 0:
            raise KuduInvalidArgument(
                f"illegal replication factor {n_replicas}: replication factor must be odd"
            )
        try:
            created = self.engine.create_table(
                table_name, schema.engine_schema, partitioning, owner=owner, comment=comment
            )
        except TableExistsError as error:
            there = self.table(table_name)
            raise KuduBadStatus(
                f"Already present: table {table_name} already exists with id {there.id}"
            ) from error
        return Table(created, self)

    def soft_delete_table(self, table_name: str, reserve_seconds: int | None = None) -> None:
        """Delete a table; for `reserve_seconds`, if above 0, it can be recalled by its id."""
        if not reserve_seconds:
            self.delete_table(table_name)
        elif table_name in self.list_soft_deleted_tables() and not self.table_exists(table_name):
            raise KuduInvalidArgument(
                f"soft_deleted table {table_name} should not be soft deleted again"
            )
        else:
            self.table(table_name)  # which raises KuduNotFound in Kudu's words
            self.engine.soft_delete_table(table_name, reserve_seconds)

    def delete_table(self, table_name: str) -> None:
        """Delete a table with all its history; a soft-deleted one if there is no other."""
        if not self.table_exists(table_name):
            for table in self.engine.list_soft_deleted_tables(table_name):
                if table.name == table_name:
                    self.recall_table(table.id)
                    break
        self.table(table_name)  # which raises KuduNotFound in Kudu's words
        self.engine.delete_table(table_name)

    def list_soft_deleted_tables(self, match_substring: str | None = None) -> list[str]:
        """Return the names of the tables that can be recalled, sorted."""
        return [table.name for table in self.engine.list_soft_deleted_tables(match_substring or "")]

    def recall_table(self, table_id: str, new_table_name: str | None = None) -> Table:
        """Bring a soft-deleted table back, under its name or another one."""
        return Table(self.engine.recall_table(table_id, new_table_name or None), self)

    def get_table_statistics(self, table_name: str) -> TableStatistics:
        """Return size and row count of a table. Raises KuduNotFound."""
        found = self.table(table_name).engine.statistics
        return TableStatistics(found.bytes_on_disk, found.live_row_count)

    def list_tablet_servers(self) -> list[TabletServer]:
        """Return the one place of all tablets: this directory."""
        return [TabletServer(self.engine.root)]

    def deserialize_token_into_scanner(self, serialized_token: bytes) -> TokenScanner:
        """Return a scanner of `ScanToken.serialize`'s bytes; only from a process that you trust."""
        return TokenScanner(tokens.ScanToken.from_bytes(serialized_token))

    def new_table_alterer(self, table: Table) -> TableAlterer:
        """Return an alterer of the table."""
        if not isinstance(table, Table):
            raise TypeError(f"expected a table of kudulite.kudu, got {table!r}")
        return TableAlterer(table)
