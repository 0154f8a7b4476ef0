"""Answers to the questions of Spark SQL's catalog, `java/Catalog.java`.

    Catalog ── option kuduliteCatalog: {"call": "create", "schema": …} ──> schema() of the source
            <── a schema whose first column has the answer as metadata ───

All that Spark brings back from the Python source is a schema, so an answer is the metadata of one.
The path that comes with a question is that of a table or of a namespace, which is a directory. It
may be the address of an object store; the settings of the session then have the options.

An error is an answer too: {"error": kind, "message": text}. The kind is the name of the class, or
one of the words below, for which the catalog has exceptions of Spark (NoSuchTableException and the
like). Any other error becomes an exception with this message. A question is answered once; answers
that change something fail when they are repeated, except `truncate` and `alter` of a property.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StringType, StructField, StructType

import kudulite
from kudulite.errors import (
    CorruptionError,
    KuduliteError,
    NotSupportedError,
    OptionError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    TimestampError,
    UsageError,
)
from kudulite_spark.options import Place, WriteOptions
from kudulite_spark.session_zone import in_zone
from kudulite_spark.sql.procedures import PROCEDURES, call_procedure, procedure_parameters
from kudulite_spark.sql.table_properties import (
    COMMENT,
    LOCATION,
    RETENTION,
    changes_nothing,
    check_names,
    duration,
    partition_names,
    partition_values,
    set_property,
    shown_properties,
)
from kudulite_spark.sql.views import VIEW_ANSWERS, Refused, check_no_view, namespace, read_view
from kudulite_spark.types import (
    CURRENT_DEFAULT,
    column_comment,
    column_type,
    default_value,
    find_column,
    table_schema,
    with_default_notes,
    with_layout_names,
    with_note,
)
from kudulite_spark.write_plan import described_partitioning, partitioning_of

if TYPE_CHECKING:
    from kudulite import Partitioning, Schema, Table, TableAlterer

NAMESPACE_EXISTS, NOT_EMPTY = "NamespaceExists", "NotEmpty"
# Kinds of a staged table; the third is createOrReplace.
CREATE, REPLACE = "create", "replace"

_HYBRID_TIMES_PER_MICROSECOND = 4096
# The HybridTimes of a later timestamp do not fit into 63 bits.
_MICROSECONDS_MAX = (1 << 63) // _HYBRID_TIMES_PER_MICROSECOND - 2
# No table has so many versions, and fewer microseconds since 1970 are a moment before 1979.
_VERSIONS_END = 1 << 48
_OF_A_DATAFRAME = (
    "Make the table of a DataFrame with df.writeTo(name).tableProperty('primaryKey', 'id').create()"
)
_BUCKET = re.compile(r"bucket\((\d+), (.+)\)")
_KEY_SETTING = "spark.kudulite.primaryKey"

Question = dict[str, Any]
Answer = dict[str, Any]


def answered(place: Place, text: str) -> StructType:
    """Do what the catalog asks for; `text` is the question in JSON."""
    question = json.loads(text)
    try:
        answer = _ANSWERS[question["call"]](place, question)
    except Refused as refusal:
        answer = {"error": str(refusal), "message": str(refusal)}
    except KuduliteError as error:
        answer = _error(error)
    # Spark would take an empty list for one of numbers.
    return _noted({name: value for name, value in answer.items() if value != []})


def load_failed(error: KuduliteError, place: Place) -> StructType:
    """Return the answer to a load() that failed: the view that is in place of a table, if any."""
    note = _error(error)
    if isinstance(error, TableNotFoundError):
        try:
            note["view"] = read_view(place)
        except CorruptionError as damage:
            note = _error(damage)
        except UsageError:
            pass  # no view either, or in a place where none can be
    return with_note(_noted({}), note)


def with_table_note(struct: StructType, table: Table, schema: Schema, snapshot: int) -> StructType:
    """Return the schema with its defaults, and a note on the table at its first column.

    `schema` is the table's at the snapshot."""
    note = {
        "primaryKey": schema.key_names,
        "isPlain": all(c.mutable and not c.auto_incrementing for c in schema.columns),
        "snapshot": str(int(snapshot)),
        "properties": (properties := shown_properties(table)),
        "propertyNames": list(properties),
        **({"partitionNames": names} if (names := partition_names(table)) else {}),
    }
    return with_note(with_default_notes(struct, schema), note)


def with_metadata_note(struct: StructType) -> StructType:
    """Return the schema of a metadata table with a note on it, as of a table, at its first column.

    Its first column takes the place of a key; writes are refused when they are planned."""
    note = {
        "primaryKey": struct.names[:1],
        "snapshot": "0",
        "properties": {"provider": "kudulite"},
        "propertyNames": ["provider"],
    }
    return with_note(struct, note)


def _noted(metadata: Answer) -> StructType:
    return StructType([StructField("answer", StringType(), True, metadata)])


def _error(error: KuduliteError) -> Answer:
    return {"error": type(error).__name__, "message": str(error)}


# -- Answers about tables


def _tables(place: Place, question: Question) -> Answer:
    return {"names": namespace(place).list_tables()}


@dataclass(frozen=True)
class _Definition:
    """A new table as CREATE TABLE describes it, checked."""

    schema: Schema
    partitioning: Partitioning
    comment: str | None
    history_seconds: int | None  # None if the statement does not say it

    def create(self, client: kudulite.Client, name: str) -> Table:
        made = client.create_table(name, self.schema, self.partitioning, comment=self.comment)
        return self.keep_history(client, made)

    def keep_history(self, client: kudulite.Client, table: Table) -> Table:
        """Give a table the retention of the statement, which is no part of its definition."""
        if self.history_seconds in (None, table.history_retention):
            return table
        return client.new_table_alterer(table).set_history_retention(self.history_seconds).alter()

    def is_of(self, table: Table) -> bool:
        """Whether a table is as a new one of this definition would be, but for its rows."""
        partition_schema = self.partitioning.build(self.schema)
        is_same = table.schema == self.schema and table.partition_schema == partition_schema
        return is_same and table.comment == (self.comment or "")


def _create(place: Place, question: Question) -> Answer:
    check_no_view(place)
    definition = _definition(place.path, question)
    definition.create(namespace(place.parent), place.name)
    return {}


def _stage(place: Place, question: Question) -> Answer:
    """Prepare what `_publish` makes visible: a hidden table, or new rows of the one that is there.

    A table that is defined as before keeps its history: its rows are replaced in one version."""
    client, path, name, kind = namespace(place.parent), place.path, place.name, question["kind"]
    check_no_view(place)
    definition = _definition(path, question)
    is_there = client.table_exists(name)
    if is_there and kind == CREATE:
        raise TableExistsError(f"table {path!r} exists")
    if not is_there and kind == REPLACE:
        raise TableNotFoundError(f"no table at {path!r}; CREATE OR REPLACE TABLE makes one")
    if is_there and definition.is_of(table := client.table(name)):
        definition.keep_history(client, table)
        return {"path": path, "isOverwrite": True}
    staging = client.new_staging()
    try:
        staged = definition.create(staging, name)
    except BaseException:
        client.delete_directory(staging.root.name)  # Spark aborts only what is staged
        raise
    return {"path": str(staged.path), "isOverwrite": False}


def _publish(place: Place, question: Question) -> Answer:
    staged = place.of(question["staged"])
    if staged != place:
        client = namespace(place.parent)
        client.publish_table(staged.table(), overwrite=question["kind"] != CREATE)
    elif not question["isWritten"]:
        place.table().truncate()
    return {}


def _unstage(place: Place, question: Question) -> Answer:
    staged = place.of(question["staged"])
    if staged != place:
        staged.parent.client().delete_table(staged.name)
        namespace(place.parent).delete_directory(staged.parent.name)
    return {}


def _definition(path: str, question: Question) -> _Definition:
    properties = dict(question["properties"])
    if LOCATION in properties:
        raise OptionError(
            f"table {path!r}: LOCATION {properties[LOCATION]!r}: a table of the catalog is a"
            " directory in that of its namespace; leave LOCATION out, or name the table by its"
            f" path, as in `{properties[LOCATION]}`"
        )
    if (provider := properties.get("provider", "kudulite")) != "kudulite":
        raise OptionError(
            f"table {path!r}: USING {provider}: all tables of this catalog are kudulite's; leave"
            f" USING out. saveAsTable names a format and no key: {_OF_A_DATAFRAME}"
        )
    if question["key"]:
        properties["primaryKey"] = json.dumps(question["key"])
    buckets = [properties["hashPartitions"]] if "hashPartitions" in properties else []
    buckets += [_bucket_option(path, text) for text in question["partitions"]]
    if buckets:
        properties["hashPartitions"] = "; ".join(buckets)
    check_names(f"table {path!r}", properties)
    retention = properties.pop(RETENTION, None)
    struct = StructType.fromJson(json.loads(question["schema"]))
    options = _with_key(path, properties, question.get("keySetting"), struct.fieldNames())
    options = with_layout_names(options, struct.fieldNames())
    _check_order(path, struct.fieldNames(), options.primary_key or ())
    defaults = {
        field.name: default_value(
            field.name, column_type(field), field.metadata[CURRENT_DEFAULT], question["zone"]
        )
        for field in struct.fields
        if CURRENT_DEFAULT in field.metadata
    }
    schema = table_schema(struct, options.primary_key or (), path, defaults)
    history_seconds = None if retention is None else duration(retention, RETENTION)
    return _Definition(schema, partitioning_of(options), properties.get(COMMENT), history_seconds)


def _with_key(
    path: str, properties: dict[str, str], setting: str | None, names: list[str]
) -> WriteOptions:
    """Return the options of a new table; its key is the setting's if the statement names none."""
    options = WriteOptions.parse({**properties, "path": path})
    if options.primary_key is not None:
        return options
    if setting is None:
        raise SchemaError(
            f"table {path!r} has no primary key: write PRIMARY KEY (id) after the columns, or"
            " TBLPROPERTIES ('primaryKey'='id'), or give the key of all tables that name none by"
            f" SET {_KEY_SETTING} = id. {_OF_A_DATAFRAME}"
        )
    options = WriteOptions.parse({**properties, "path": path, "primaryKey": setting})
    key = with_layout_names(options, names).primary_key or ()
    own = (*names, kudulite.Schema.get_auto_incrementing_column_name())
    if missing := [name for name in key if name not in own]:
        raise SchemaError(
            f"table {path!r} has no primary key: the setting {_KEY_SETTING} names"
            f" {', '.join(map(repr, missing))}, which is none of the columns"
            f" {', '.join(names)}; write TBLPROPERTIES ('primaryKey'='…') in the statement"
        )
    return options


def _check_order(path: str, names: list[str], primary_key: Sequence[str]) -> None:
    """Refuse columns in another order than the table's: INSERT without names is by position.

    With a key that is not unique, the key and the number of the row are the first columns."""
    if kudulite.Schema.get_auto_incrementing_column_name() not in primary_key:
        return
    key = [name for name in primary_key if name in names]
    order = ", ".join(key + [name for name in names if name not in key])
    if names[: len(key)] != key:
        raise SchemaError(
            f"table {path!r}: the columns of a key that is not unique must be the first, as in"
            f" {order}"
        )


def _bucket_option(path: str, text: str) -> str:
    """Return `bucket(4, a, b)` of PARTITIONED BY as the option hashPartitions has it."""
    found = _BUCKET.fullmatch(text)
    if found is None or int(found[1]) < 2:
        raise SchemaError(
            f"table {path!r}: PARTITIONED BY ({text}): write bucket(4, column) for 4 hash"
            " partitions, at least 2; ranges are the table property 'rangePartitions'"
        )
    return f"{found[2]}:{found[1]}"


def _drop(place: Place, question: Question) -> Answer:
    client, name = _existing(place)
    client.delete_table(name)
    return {}


def _rename(place: Place, question: Question) -> Answer:
    target = place.of(question["to"])
    if target.parent != place.parent:
        raise UsageError(
            f"table {place.path!r} cannot be renamed to {target.path!r}: that is another"
            " namespace; copy it there with `kudulite copy`"
        )
    client, name = _existing(place)
    check_no_view(target)
    client.rename_table(name, target.name)
    return {}


def _truncate(place: Place, question: Question) -> Answer:
    place.table().truncate()
    return {}


def _moment(place: Place, question: Question) -> Answer:
    """Return the HybridTime of a tag, a version or a text, or the number that is a moment."""
    table = place.table()
    version = question["version"]
    found = table.tags.get(version)
    if found is None and version.isdigit():
        if int(version) < _VERSIONS_END:
            version = str(int(table.scan(version=int(version)).timestamp))
        return {"moment": version}
    try:
        text = in_zone(version, question["zone"])
        moment = kudulite.parse_timestamp(text) if found is None else int(found)
        return {"moment": str(moment)}
    except TimestampError as error:
        tags = ", ".join(table.tags) or "none"
        raise TimestampError(
            f"table {place.path!r}, VERSION AS OF {version!r}: it has no tag of this name, its"
            f" tags: {tags}; and {error}"
        ) from error


def _window(place: Place, question: Question) -> Answer:
    """Return the window (start, end] of CHANGES FROM … TO … as options of a read.

    A bound belongs to the range or not; a timestamp is all HybridTimes of its microsecond. Spark's
    clause has both images of an update."""
    found = {"changeImages": "both"}
    for bound in ("start", "end"):
        if f"{bound}Microseconds" in question:
            microseconds = min(max(question[f"{bound}Microseconds"], 0), _MICROSECONDS_MAX)
            first = microseconds * _HYBRID_TIMES_PER_MICROSECOND
            last = first + _HYBRID_TIMES_PER_MICROSECOND - 1
        elif f"{bound}Version" in question:
            version = {**question, "version": question[f"{bound}Version"]}
            first = last = int(_moment(place, version)["moment"])
        else:
            continue
        has_before = question["hasStart"] if bound == "start" else not question["hasEnd"]
        found[f"{bound}Timestamp"] = str(first - 1 if has_before else last)
    return found


def _alter(place: Place, question: Question) -> Answer:
    client, name = _existing(place)
    table, path = client.table(name), place.path
    steps = [step for step in question["steps"] if not changes_nothing(step)]
    if not steps:
        return {}
    alterer = client.new_table_alterer(table)
    for step in steps:
        if step["step"] not in _STEPS:
            raise NotSupportedError(
                f"table {path!r}: ALTER TABLE with {step['step']} is not possible; possible are:"
                f" {', '.join(_STEPS)}; Client.new_table_alterer alters ranges and encodings"
            )
        if len(step.get("column", [])) > 1:
            raise NotSupportedError(
                f"table {path!r}: {step['column']} is no column; none is nested"
            )
        if "position" in step:
            raise NotSupportedError(
                f"table {path!r}: ADD COLUMN … {step['position']}: a new column is the last one"
            )
        _STEPS[step["step"]](alterer, {**step, "schema": table.schema, "zone": question["zone"]})
    alterer.alter()
    return {}


def _add_column(alterer: TableAlterer, step: Question) -> None:
    given = _field(step)
    name, new_type = step["column"][0], column_type(given)
    default = None
    if "default" in step:
        default = default_value(name, new_type, step["default"], step["zone"])
    spec = alterer.add_column(name, new_type, nullable=given.nullable, default=default)
    if comment := step["comment"] or column_comment(given):
        spec.comment(comment)


def _set_default(alterer: TableAlterer, step: Question) -> None:
    schema = step["schema"]
    column = schema.column(find_column(step["column"][0], schema.names, "ALTER COLUMN"))
    value = default_value(column.name, column.type, step["default"] or "NULL", step["zone"])
    spec = alterer.alter_column(column.name)
    if value is None:
        spec.remove_default()
    else:
        spec.default(value)


def _field(step: Question) -> StructField:
    return StructType.fromJson(json.loads(step["type"])).fields[0]


# Spark's names of changes.
_STEPS: dict[str, Callable[[TableAlterer, Question], object]] = {
    "AddColumn": _add_column,
    "DeleteColumn": lambda alterer, step: alterer.drop_column(step["column"][0]),
    "RenameColumn": lambda alterer, step: alterer.alter_column(
        step["column"][0], rename_to=step["to"]
    ),
    "UpdateColumnDefaultValue": _set_default,
    "UpdateColumnType": lambda alterer, step: alterer.alter_column(step["column"][0]).type(
        column_type(_field(step))
    ),
    "UpdateColumnComment": lambda alterer, step: alterer.alter_column(step["column"][0]).comment(
        step["comment"]
    ),
    "SetProperty": set_property,
    "RemoveProperty": set_property,
}


def _existing(place: Place) -> tuple[kudulite.Client, str]:
    """Return the client of a table and its name; nothing is made on the way."""
    client = place.parent.client(create=False)
    if not client.table_exists(place.name):
        raise TableNotFoundError(f"no table at {place.path!r}")
    return client, place.name


# -- Answers about namespaces


def _warehouse(place: Place, question: Question) -> Answer:
    """Make the directory of the catalog, if it is not there."""
    try:
        place.client(create=False)
    except TableNotFoundError:
        place.parent.client().create_directory(place.name)
    return {}


def _namespaces(place: Place, question: Question) -> Answer:
    return {"names": namespace(place).list_directories()}


def _create_namespace(place: Place, question: Question) -> Answer:
    try:
        namespace(place.parent).create_directory(place.name)
    except TableExistsError:
        raise Refused(NAMESPACE_EXISTS) from None
    return {}


def _drop_namespace(place: Place, question: Question) -> Answer:
    client = namespace(place)
    tables, views = client.list_tables(), client.list_views()
    if client.list_directories() or ((tables or views) and not question["cascade"]):
        raise Refused(NOT_EMPTY)
    for name in tables:
        client.delete_table(name)
    for name in views:
        client.delete_view(name)
    place.parent.client().delete_directory(place.name)
    return {}


_ANSWERS: dict[str, Callable[[Place, Question], Answer]] = {
    **VIEW_ANSWERS,
    "alter": _alter,
    "callProcedure": call_procedure,
    "create": _create,
    "createNamespace": _create_namespace,
    "drop": _drop,
    "dropNamespace": _drop_namespace,
    "moment": _moment,
    "namespaces": _namespaces,
    "partitions": lambda place, question: {"values": partition_values(place.table())},
    "partitioning": lambda place, question: described_partitioning(place.table()),
    "procedure": lambda place, question: {"names": procedure_parameters(question["name"])},
    "procedures": lambda place, question: {"names": list(PROCEDURES)},
    "publish": _publish,
    "rename": _rename,
    "stage": _stage,
    "tables": _tables,
    "truncate": _truncate,
    "unstage": _unstage,
    "warehouse": _warehouse,
    "window": _window,
}
