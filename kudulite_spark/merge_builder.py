"""`merge`: the rows of a DataFrame are merged into a table by clauses, as SQL's MERGE does it.

    table at one moment  "target" ─┐
                                   ├─ join ─ clause of each row ─ check ─ cells ─ one write
    DataFrame            "source" ─┘

It needs no JVM extension, as it is made of a load(), a join and a write whose rows have different
operations (`operationColumn`). The SQL statement of the catalog is the same in another form.

**Semantics**, SQL's: (1) Of the clauses for a row, the first whose condition is true applies, and
no other. (2) Two source rows that match one row of the table are an error, unless the only clause
for matching rows deletes them without a condition. (3) A statement reads one snapshot and writes
one version. (4) A key cannot be changed. (5) If one of the written keys has changed since the
snapshot, the commit raises ConflictError and nothing is written.

A value is stored if the column can hold exactly this value; SQL would round it. Only the columns
that some clause sets are written.

**Left out**: schema evolution, and tables whose rows are numbered by the engine, except for updates
and deletes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from os import PathLike

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, NullType

from kudulite import Schema
from kudulite.errors import SchemaError, UsageError
from kudulite_spark.literals import literal
from kudulite_spark.options import (
    READ_AT,
    absolute_path,
    session_source_options,
    table_in_session,
)
from kudulite_spark.session import activate, start_directory
from kudulite_spark.types import find_column, find_name, is_writable, spark_type

_MATCHED, _NOT_MATCHED = "WHEN MATCHED", "WHEN NOT MATCHED"
_NOT_MATCHED_BY_SOURCE = "WHEN NOT MATCHED BY SOURCE"

# Columns of the join beside those of both sides.
_PRESENT, _NUMBER = "_kudulite_present", "_kudulite_number"
_CLAUSE, _COUNT, _OPERATION = "_kudulite_clause", "_kudulite_count", "_kudulite_operation"

Condition = Column | str
Values = Mapping[str, Column | str]


def merge(
    df: DataFrame,
    path: str | PathLike[str],
    on: str | Sequence[str] | Column | None = None,
) -> MergeBuilder:
    """Begin to merge the rows of `df` into the table at `path`; `execute()` of the result does it.

    In conditions and values, text or columns of Spark, the row of the table is `target` and that of
    `df` is `source`, as in `"source.v > target.v"`. `on` says which rows match: the name of a
    column that both have, several names, or a condition; the default is the primary key. Raises
    TableNotFoundError."""
    place = absolute_path(path, start_directory(df.sparkSession))
    table_in_session(df.sparkSession, place)
    return MergeBuilder(df, place, on)


@dataclass(frozen=True)
class _Clause:
    """One clause; `values` None means all columns of the table, from those of the source."""

    match: str
    action: str
    condition: Condition | None
    values: Values | None = None

    def __repr__(self) -> str:
        test = "" if self.condition is None else f" AND {self.condition}"
        if self.action == "delete":
            return f"{self.match}{test} THEN DELETE"
        names = "*" if self.values is None else ", ".join(self.values)
        text = f"UPDATE SET {names}" if self.action == "update" else f"INSERT ({names})"
        return f"{self.match}{test} THEN {text}"


@dataclass(frozen=True, repr=False)
class MergeBuilder:
    """A merge that is described clause by clause; each method returns a new one.

    The clauses are those of SQL's MERGE and Delta's `DeltaTable.merge`. A condition is text or a
    Column. `values` are expressions, text or Columns, by the names of columns of the table."""

    _source: DataFrame
    _path: str
    _on: str | Sequence[str] | Column | None
    _clauses: tuple[_Clause, ...] = ()

    def __repr__(self) -> str:
        on = "its primary key" if self._on is None else str(self._on)
        clauses = "".join(f" {clause!r}" for clause in self._clauses)
        return f"<MergeBuilder into {self._path!r} on {on}{clauses}>"

    def when_matched_update(
        self, values: Values, condition: Condition | None = None
    ) -> MergeBuilder:
        """Set columns of the rows that a source row matches; the others stay as they are."""
        return self._with(_Clause(_MATCHED, "update", condition, values))

    def when_matched_update_all(self, condition: Condition | None = None) -> MergeBuilder:
        """Set all columns of the rows that a source row matches, to its columns of these names."""
        return self._with(_Clause(_MATCHED, "update", condition))

    def when_matched_delete(self, condition: Condition | None = None) -> MergeBuilder:
        """Delete the rows that a source row matches."""
        return self._with(_Clause(_MATCHED, "delete", condition))

    def when_not_matched_insert(
        self, values: Values, condition: Condition | None = None
    ) -> MergeBuilder:
        """Insert a row for each source row that matches none; other columns get their defaults."""
        return self._with(_Clause(_NOT_MATCHED, "insert", condition, values))

    def when_not_matched_insert_all(self, condition: Condition | None = None) -> MergeBuilder:
        """Insert each source row that matches none, with all columns of the table."""
        return self._with(_Clause(_NOT_MATCHED, "insert", condition))

    def when_not_matched_by_source_update(
        self, values: Values, condition: Condition | None = None
    ) -> MergeBuilder:
        """Set columns of the rows that no source row matches."""
        return self._with(_Clause(_NOT_MATCHED_BY_SOURCE, "update", condition, values))

    def when_not_matched_by_source_delete(self, condition: Condition | None = None) -> MergeBuilder:
        """Delete the rows that no source row matches."""
        return self._with(_Clause(_NOT_MATCHED_BY_SOURCE, "delete", condition))

    def _with(self, clause: _Clause) -> MergeBuilder:
        for before in self._clauses:
            if before.match == clause.match and before.condition is None:
                raise UsageError(
                    f"table {self._path!r}: {clause!r} can never apply, because {before!r} has no"
                    " condition and comes first; put the clause without a condition last"
                )
        if clause.values is not None and not clause.values:
            raise UsageError(f"table {self._path!r}: {clause!r} names no column; name at least one")
        return replace(self, _clauses=(*self._clauses, clause))

    def execute(
        self, application_id: str | None = None, application_version: int | None = None
    ) -> None:
        """Read the table now, and write what the clauses say in one version.

        With both options of `df.write`, a merge of a version that is committed already is skipped.
        Raises a UsageError for an unknown column or a value of a wrong type. Errors of the rows (a
        second match, a changed key, a ConflictError) are Spark's, with the text of the cause; then
        nothing was written."""
        if not self._clauses:
            raise UsageError(
                f"table {self._path!r}: the merge has no clause; add one, as in"
                " .when_matched_update_all().when_not_matched_insert_all()"
            )
        spark = self._source.sparkSession
        activate(spark)
        table = table_in_session(spark, self._path)
        storage = session_source_options(spark, self._path)
        # Planning a read settles its moment; no row is read.
        moment = str(int(table.scan(columns=[]).timestamp))
        reader = spark.read.format("kudulite").options(**storage)
        reader = reader.option("snapshotTimestamp", moment)
        plan = _Plan(self._path, table.schema, self._source, self._clauses)
        changes = plan.changes(reader.load(self._path), self._on)
        operation = plan.operation
        option = ("operationColumn", _OPERATION) if operation is None else ("operation", operation)
        writer = changes.write.format("kudulite").mode("append").options(**storage).option(*option)
        if application_id is not None:
            writer = writer.option("applicationId", application_id)
        if application_version is not None:
            writer = writer.option("applicationVersion", application_version)
        writer.option(READ_AT, moment).save(self._path)


class _Plan:
    """The query of one merge: from the rows of both sides to those that are written."""

    def __init__(
        self, path: str, schema: Schema, source: DataFrame, clauses: Sequence[_Clause]
    ) -> None:
        self._where = f"table {path!r}"
        self._schema = schema
        self._source = source.select("*", sf.lit(True).alias(_PRESENT)).alias("source")
        self._source_names = source.columns
        self._clauses = clauses
        self._values = [self._named_values(clause) for clause in clauses]
        set_names = {name for values in self._values for name in values}
        self._written = [n for n in schema.names if n in set_names or n in schema.key_names]
        self._operations = [self._operation_of(clause) for clause in clauses]

    @property
    def operation(self) -> str | None:
        """The operation of all rows; None if they have different ones."""
        return self._operations[0] if len({*self._operations}) == 1 else None

    def _operation_of(self, clause: _Clause) -> str:
        if clause.action == "delete":
            return "delete_ignore"  # two source rows may delete one row
        fixed = [name for name in self._written if not self._schema.column(name).mutable]
        # Cells that only inserts set are written for all rows; an update leaves them alone.
        return "update_ignore" if clause.action == "update" and fixed else clause.action

    def _named_values(self, clause: _Clause) -> dict[str, Column]:
        """Return the values of a clause by the table's names of their columns."""
        if clause.action == "delete":
            return {}
        key = self._schema.key_names
        if clause.values is None:
            found = {name: self._source_column(name) for name in self._schema.names}
        else:
            named = clause.values.items()
            where = f"{self._where}: {clause!r}"
            found = {find_column(n, self._schema.names, where): _column(v) for n, v in named}
        if clause.action == "insert":
            if missing := [name for name in key if name not in found]:
                raise SchemaError(
                    f"{self._where}: {clause!r} lacks key column {', '.join(missing)}; the primary"
                    f" key is ({', '.join(key)})"
                )
            return found
        for name in found:
            if not self._schema.column(name).mutable and name not in key:
                raise SchemaError(
                    f"{self._where}: {clause!r} sets column {name!r}, which is immutable: name the"
                    " columns to set, without it"
                )
        return found

    def _source_column(self, name: str) -> Column:
        return _of("source", find_column(name, self._source_names, f"{self._where}: the source"))

    def changes(self, target: DataFrame, on: str | Sequence[str] | Column | None) -> DataFrame:
        """Return one row for each row that the merge changes, with the columns that are written."""
        key = [_of("target", name) for name in self._schema.key_names]
        in_target, in_source = key[0].isNotNull(), _of("source", _PRESENT).isNotNull()
        tests = {
            _MATCHED: in_target & in_source,
            _NOT_MATCHED: ~in_target,
            _NOT_MATCHED_BY_SOURCE: in_target & ~in_source,
        }
        joined = target.alias("target").join(self._source, self._match(on), self._kind_of_join())
        chosen = sf.lit(None).cast("int")
        for number, clause in reversed(list(enumerate(self._clauses))):
            test = tests[clause.match]
            if clause.condition is not None:
                test &= _column(clause.condition)
            chosen = sf.when(test, number).otherwise(chosen)
        rows = joined.select("*", chosen.alias(_CLAUSE))
        if self._may_match_once():
            rows = self._checked(rows, tests[_MATCHED], key, is_by_key=on is None)
        rows = rows.filter(sf.col(_CLAUSE).isNotNull())
        cells = self._cells(rows)
        if self.operation is None:
            operations = sf.array(*map(sf.lit, self._operations))
            cells.append(sf.get(operations, sf.col(_CLAUSE)).alias(_OPERATION))
        return rows.select(*cells)

    def _match(self, on: str | Sequence[str] | Column | None) -> Column:
        if isinstance(on, Column):
            return on
        if isinstance(on, str) and find_name(on, self._schema.names, self._where) is None:
            return sf.expr(on)
        names = self._schema.key_names if on is None else [on] if isinstance(on, str) else on
        where = f"{self._where}: 'on'"
        own = [find_column(name, self._schema.names, where) for name in names]
        if not own:
            raise UsageError(f"{where} names no column; leave it out for the primary key")
        return reduce(and_, (_of("target", n) == self._source_column(n) for n in own))

    def _kind_of_join(self) -> str:
        matches = {clause.match for clause in self._clauses}
        if _NOT_MATCHED_BY_SOURCE in matches:
            return "full_outer" if _NOT_MATCHED in matches else "left_outer"
        return "right_outer" if _NOT_MATCHED in matches else "inner"

    def _may_match_once(self) -> bool:
        """Whether a second match of a row is an error, as it is in Spark's MERGE."""
        own = [clause for clause in self._clauses if clause.match == _MATCHED]
        is_delete = len(own) == 1 and own[0].action == "delete" and own[0].condition is None
        return bool(own) and not is_delete

    def _checked(
        self, rows: DataFrame, is_matched: Column, key: Sequence[Column], is_by_key: bool
    ) -> DataFrame:
        """Return the rows with a clause that is an error where two of the source match."""
        rows = rows.filter(is_matched | sf.col(_CLAUSE).isNotNull())
        if is_by_key and self._kind_of_join() in ("inner", "right_outer"):
            # Each row has a source, and the join has sorted by its key: there is no other shuffle.
            group = [self._source_column(name) for name in self._schema.key_names]
        else:
            rows = rows.select("*", sf.monotonically_increasing_id().alias(_NUMBER))
            # A row without a target has no key: by its number it is alone in its group.
            group = [*key, sf.when(~is_matched, sf.col(_NUMBER))]
        count = sf.count("*").over(Window.partitionBy(*group))
        rows = rows.select("*", count.alias(_COUNT))
        text = sf.concat(
            sf.lit(f"{self._where}: more than one source row matches the row with the key ("),
            sf.concat_ws(", ", *(column.cast("string") for column in key)),
            sf.lit("); nothing was written: make the source unique, for example with GROUP BY"),
        )
        is_repeated = is_matched & (sf.col(_COUNT) > 1)
        error = sf.raise_error(text).cast("int")
        checked = sf.when(is_repeated, error).otherwise(sf.col(_CLAUSE))
        return rows.withColumn(_CLAUSE, checked)

    def _cells(self, rows: DataFrame) -> list[Column]:
        """Return the cells of the written columns, by the clause of a row."""
        named = [(number, name) for number, values in enumerate(self._values) for name in values]
        values = [self._values[number][name] for number, name in named]
        # Spark finds the types of all values at once.
        typed = rows.select(*(value.alias(str(at)) for at, value in enumerate(values))).schema
        stored = {
            place: self._stored(place, value, field.dataType)
            for place, value, field in zip(named, values, typed.fields, strict=True)
        }
        return [self._cell(name, stored).alias(name) for name in self._written]

    def _stored(self, place: tuple[int, str], value: Column, found: DataType) -> Column:
        """Return a value in the type of its column; a value that it cannot hold is an error."""
        number, name = place
        column = self._schema.column(name)
        wanted = spark_type(column.type)
        where = f"{self._where}, column {name!r}"
        if not is_writable(found, column.type):
            raise SchemaError(
                f"{where}: {self._clauses[number]!r} has {found.simpleString()}, the column is"
                f" {column.type}; cast it"
            )
        if isinstance(found, NullType):
            value = value.cast(wanted)
        elif found != wanted:
            kept = value.try_cast(wanted)
            text = sf.concat(
                sf.lit(f"{where}: "),
                value.cast("string"),
                sf.lit(f" of {found.simpleString()} has no equal in {column.type}; cast it"),
            )
            is_equal = kept.try_cast(found).eqNullSafe(value)
            value = sf.when(is_equal, kept).otherwise(sf.raise_error(text).cast(wanted))
        if name not in self._schema.key_names or self._clauses[number].action == "insert":
            return value
        text = sf.lit(
            f"{where} is part of the primary key, which an update cannot change; delete the row"
            " and insert another"
        )
        own = _of("target", name)
        return sf.when(value.eqNullSafe(own), own).otherwise(sf.raise_error(text).cast(wanted))

    def _cell(self, name: str, stored: Mapping[tuple[int, str], Column]) -> Column:
        """Return a column of the changes; a row that does not set it has the stored value."""
        column = self._schema.column(name)
        cell = _of("target", name)
        for number, clause in enumerate(self._clauses):
            is_chosen = sf.col(_CLAUSE) == number
            if (number, name) in stored:
                cell = sf.when(is_chosen, stored[number, name]).otherwise(cell)
            elif clause.action == "insert":
                default = literal(column.write_default, column.type)
                cell = sf.when(is_chosen, default).otherwise(cell)
        return cell


def _of(side: str, name: str) -> Column:
    return sf.col(f"{side}.`{name.replace('`', '``')}`")


def _column(given: Column | str) -> Column:
    return sf.expr(given) if isinstance(given, str) else given
