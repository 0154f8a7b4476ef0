"""ReadRequest: one read of a table, from the call that asks for it to the tasks that run it.

    ReadRequest            columns, predicates, moments, order, limit, bounds, as the caller says
       │ plan_rows, plan_changes: check it, settle the moments, note the column ids
    RowPlan, ChangePlan    made once, picklable, the same in all tokens
       │ read_of, Read.newest: bind it to the schema of the newest version
    Read                   store, newest version, ScanSpec or DiffSpec, made for each reading

A plan always reads the newest version, never the one it was made from: the files of that one may
have been removed since, and at a settled moment all versions show the same rows and columns.

**Invariants**: (1) a request and a plan never change: a plan holds the request that it was made
for, with its names and moments fixed; (2) the moments of a plan are settled; (3) the names of a
plan mean the columns that had them when it was made, by id.

**Threads**: any.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Self, TypeVar

import pyarrow as pa

from kudulite.chain.manifest import Manifest
from kudulite.chain.partition import KeyBounds
from kudulite.errors import (
    ConflictError,
    OptionError,
    SchemaError,
    StorageError,
    UsageError,
)
from kudulite.model.aliases import Columns, Moment, Where
from kudulite.model.condition import Condition, conditions_of
from kudulite.model.hybrid_time import format_timestamp
from kudulite.model.predicate import bind_predicates, parsed
from kudulite.model.row_order import OrderKey, parse_order
from kudulite.model.schema import Column, Schema
from kudulite.rowset.scan_spec import DiffSpec, ScanSpec
from kudulite.storage.address import DIRECTORIES, StorageAddress
from kudulite.storage.storage import as_path
from kudulite.table.environment import environment_at
from kudulite.table.scan_plan import (
    ColumnIds,
    Spec,
    choose_window,
    narrowed,
    planned_columns,
    schema_as_planned,
    with_planned_types,
)
from kudulite.table.snapshot import check_not_ancient, choose_snapshot
from kudulite.table.table_names import replaced_table
from kudulite.table.table_store import TableStore
from kudulite.tablet.tablet_scan import CHANGE_COLUMNS, diff_schema

IMAGES = ("after", "both")
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class ReadRequest:
    """The rows at one moment, or the changes in (`start`, `at`], of some columns and rows.

    `columns` None means all, `at` None means now. `ordered` and `limit` are of rows, `start` and
    `images` of changes. `bounds` are encoded keys [lower, upper). Names mean the columns of the
    moment, or those of `schema`, which the table has or has had. Columns of it that were added
    after the moment have their defaults. `order_by` is as users give it, and parsed in a plan.
    """

    columns: tuple[str, ...] | None = None
    where: tuple[Condition, ...] = ()
    at: Moment | None = None
    start: Moment | None = None
    ordered: bool = False
    limit: int | None = None
    order_by: tuple[str | OrderKey, ...] = ()
    bounds: KeyBounds = (None, None)
    images: str = "after"
    schema: Schema | None = None

    @property
    def order(self) -> tuple[OrderKey, ...]:
        """The order of a request that is planned."""
        return tuple(key for key in self.order_by if isinstance(key, OrderKey))

    @staticmethod
    def of(
        columns: Columns | None = None,
        where: Where = (),
        *,
        at: Moment | None = None,
        start: Moment | None = None,
        ordered: bool = False,
        limit: int | None = None,
        order_by: Columns = (),
        images: str = "after",
        schema: Schema | None = None,
    ) -> ReadRequest:
        """Return a request from arguments as users give them: text of columns is one name.

        Text of conditions is parsed when the read is planned. Raises OptionError for a `where` of
        another form.
        """
        names = (columns,) if isinstance(columns, str) else columns
        return ReadRequest(
            columns=None if names is None else tuple(names),
            where=conditions_of(where),
            at=at,
            start=start,
            ordered=ordered,
            limit=limit,
            order_by=(order_by,) if isinstance(order_by, str) else tuple(order_by),
            images=images,
            schema=schema,
        )


@dataclass(frozen=True)
class ReadPlan(ABC, Generic[Spec]):
    """A request whose moments and column names are fixed, and the ids of the columns."""

    folder: str
    table_id: str
    request: ReadRequest
    column_ids: ColumnIds = ()
    storage: StorageAddress = DIRECTORIES

    @property
    def timestamp(self) -> int:
        """The HybridTime of the rows, or of the end of the window; inclusive."""
        assert isinstance(self.request.at, int), "a plan has fixed moments"
        return self.request.at

    @property
    @abstractmethod
    def oldest(self) -> int:
        """The oldest moment that is read."""

    @abstractmethod
    def bind(self, table: str, schema: Schema, then: Schema) -> Spec:
        """Check names and predicates against `schema`; `then` is the table's at the moment.

        Raises ColumnNotFoundError and SchemaError.
        """

    @abstractmethod
    def result_schema(self, spec: Spec) -> pa.Schema:
        """Return the Arrow schema of what is read by `spec`."""

    def scan_spec(self, table: str, schema: Schema) -> ScanSpec:
        """Return the scan of the rows at `timestamp`; its bounds are also those of key predicates.

        Raises ColumnNotFoundError and SchemaError.
        """
        request = self.request
        names = tuple(schema.names if request.columns is None else request.columns)
        try:
            for name in names:
                schema.column(name)
            predicates = bind_predicates(request.where, schema)
        except SchemaError as error:
            raise type(error)(f"table {table!r}: {error}") from error
        spec = ScanSpec(schema, names, predicates, self.timestamp, *predicates.key_bounds())
        return narrowed(spec, *request.bounds)

    def of_columns(self, columns: Sequence[str], where: Sequence[Condition]) -> Self:
        """Return the same plan of other columns, among those it has, and other rows."""
        request = replace(self.request, columns=tuple(columns), where=tuple(where))
        return replace(self, request=request)


@dataclass(frozen=True)
class RowPlan(ReadPlan[ScanSpec]):
    """A plan of the rows at `timestamp`."""

    @property
    def oldest(self) -> int:
        """The moment of the snapshot."""
        return self.timestamp

    def bind(self, table: str, schema: Schema, then: Schema) -> ScanSpec:
        """Return the scan that every rowset is asked for."""
        limit = None if self.request.order_by else self.request.limit
        return replace(self.scan_spec(table, schema), limit=limit)

    def result_schema(self, spec: ScanSpec) -> pa.Schema:
        """Return the columns, without column ids."""
        return spec.fields


@dataclass(frozen=True)
class ChangePlan(ReadPlan[DiffSpec]):
    """A plan of the changes in a window."""

    @property
    def oldest(self) -> int:
        """The HybridTime after which the window begins."""
        assert isinstance(self.request.start, int), "a plan has fixed moments"
        return self.request.start

    def bind(self, table: str, schema: Schema, then: Schema) -> DiffSpec:
        """Return the diff scan that every rowset is asked for.

        Raises SchemaError for a column that is named like a column of changes.
        """
        scan = self.scan_spec(table, schema)
        for name in scan.names:
            if name in CHANGE_COLUMNS:
                raise SchemaError(
                    f"table {table!r}: its column {name!r} has the name of a column that changes"
                    " have themselves; leave it out with columns=[…], or rename it"
                )
        return DiffSpec(
            schema=scan.schema,
            names=scan.names,
            predicates=scan.predicates,
            start=self.oldest,
            end=scan.timestamp,
            column_ids=frozenset(column.id for column in (*then.columns, *schema.columns)),
            with_before=self.request.images == "both",
            lower=scan.lower,
            upper=scan.upper,
        )

    def result_schema(self, spec: DiffSpec) -> pa.Schema:
        """Return the columns and the columns of changes."""
        return diff_schema(spec)


@dataclass(frozen=True)
class Read(Generic[Spec]):
    """A plan bound to a version of its table, in this process."""

    store: TableStore
    manifest: Manifest
    plan: ReadPlan[Spec]
    spec: Spec

    @cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the result."""
        planned = with_planned_types(self.spec.schema, self.plan.column_ids)
        is_same = planned is self.spec.schema
        return self.plan.result_schema(self.spec if is_same else replace(self.spec, schema=planned))

    @property
    def columns(self) -> list[Column]:
        """The table's columns in the result, as they were when the read was planned."""
        schema = with_planned_types(self.spec.schema, self.plan.column_ids)
        return [schema.column(name) for name in self.spec.names]

    def is_superseded(self, error: StorageError) -> bool:
        """Whether an error is for a file that is missing because there is a newer version."""
        return error.errno == errno.ENOENT and self.store.newest() is not self.manifest

    def stream(
        self, of: Callable[[Read[Spec]], Iterator[Batch]], again: Callable[[], Read[Spec]]
    ) -> Iterator[Batch]:
        """Yield what `of` reads, of the read that `again` gives where this one is superseded."""
        is_begun = False
        try:
            for batch in of(self):
                is_begun = True
                yield batch
            return
        except StorageError as error:
            if is_begun or not self.is_superseded(error):
                raise
        yield from of(again())

    def newest(self) -> Read[Spec]:
        """Return the same read of the newest version. Raises ConflictError."""
        manifest = self.store.chain.newest_at(self.plan.timestamp)
        if manifest is self.manifest:
            return self
        if manifest.table_id != self.plan.table_id:
            raise _other_table(self.store)
        if manifest.schema is self.manifest.schema and (
            manifest.schema_changes == self.manifest.schema_changes
        ):
            return replace(self, manifest=manifest)
        return read_of(self.store, manifest, self.plan)


def _other_table(store: TableStore) -> ConflictError:
    return ConflictError(
        f"table {store.name!r} was deleted and created again after the read was planned; read it"
        " again"
    )


def read_of_plan(plan: ReadPlan[Spec]) -> Read[Spec]:
    """Bind a plan that another process may have made to the newest version of its table.

    Raises ConflictError where the table was created again, TimestampError where the ancient history
    mark has passed the plan.
    """
    store = TableStore(as_path(plan.folder), environment_at(plan.storage))
    store = replaced_table(store, plan.table_id)
    manifest = store.newest()
    if manifest.table_id != plan.table_id:
        raise _other_table(store)
    check_not_ancient(store, manifest, plan.oldest)
    return read_of(store, manifest, plan)


def read_of(
    store: TableStore,
    manifest: Manifest,
    plan: ReadPlan[Spec],
    bounds: KeyBounds = (None, None),
) -> Read[Spec]:
    """Bind a plan, within `bounds`, to a version; renamed columns keep the names of the plan.

    Raises ConflictError where a column of it was dropped before its moment.
    """
    schema = schema_as_planned(store.name, plan.column_ids, plan.timestamp, manifest)
    spec = plan.bind(store.name, schema, manifest.schema_at(plan.timestamp))
    return Read(store, manifest, plan, narrowed(spec, *bounds))


def plan_rows(store: TableStore, request: ReadRequest) -> Read[ScanSpec]:
    """Plan a read of the rows at `request.at`.

    Raises ColumnNotFoundError, SchemaError, TimestampError and OptionError.
    """
    if request.limit is not None and request.limit < 0:
        raise OptionError(f"table {store.name!r}: limit {request.limit} of a scan is below 0")
    if request.ordered and request.order_by:
        raise OptionError(
            f"table {store.name!r}: a scan is ordered by the key or has order_by; give one of them"
        )
    timestamp = choose_snapshot(store, request.at)
    manifest = store.chain.newest_at(timestamp)  # after settling
    settled = replace(request, at=timestamp)
    plan = RowPlan(str(store.folder), manifest.table_id, settled, (), store.storage.address)
    return _planned(store, manifest, plan)


def plan_changes(store: TableStore, request: ReadRequest) -> Read[DiffSpec]:
    """Plan a read of the changes in (`request.start`, `request.at`].

    Raises ColumnNotFoundError, SchemaError, TimestampError and OptionError.
    """
    if request.images not in IMAGES:
        raise OptionError(
            f"table {store.name!r}: unknown images {request.images!r} of changes; known:"
            f" {', '.join(IMAGES)}"
        )
    start, end = choose_window(store, request.start, request.at)
    manifest = store.chain.newest_at(end)  # after settling
    settled = replace(request, start=start, at=end)
    plan = ChangePlan(str(store.folder), manifest.table_id, settled, (), store.storage.address)
    return _planned(store, manifest, plan)


def _parsed(store: TableStore, schema: Schema, request: ReadRequest) -> ReadRequest:
    """Return a request whose texts are parsed."""
    try:
        order = parse_order(request.order_by, schema) if request.order_by else ()
        return replace(request, where=parsed(request.where, schema), order_by=order)
    except UsageError as error:
        raise type(error)(f"table {store.name!r}: {error}") from error


def _planned(store: TableStore, manifest: Manifest, plan: ReadPlan[Spec]) -> Read[Spec]:
    """Bind a new plan, and fix the names and ids of its columns."""
    then, given = manifest.schema_at(plan.timestamp), plan.request.schema
    schema = given or then
    try:
        request: ReadRequest = replace(_parsed(store, schema, plan.request), schema=None)
        plan = replace(plan, request=request)
        spec: Spec = plan.bind(store.name, schema, then)
    except UsageError as error:
        if then is manifest.schema or given is not None:
            raise
        raise type(error)(
            f"{error}; these are the columns at {format_timestamp(plan.timestamp)}; the table now"
            f" has {', '.join(manifest.schema.names)}"
        ) from error
    names = [*spec.names, *(key.column for key in request.order)]
    fixed = replace(
        plan,
        request=replace(request, columns=spec.names),
        column_ids=planned_columns(schema, names, request.where),
    )
    if schema is manifest.schema:
        return Read(store, manifest, fixed, spec)
    return read_of(store, manifest, fixed)
