"""Table alterer: collects steps, and applies them in one new version.

    alterer = client.new_table_alterer(table)
    alterer.add_column("city", "string", default="")
    alterer.alter_column("host", rename_to="machine").comment("where it was measured")
    table = alterer.drop_column("note").alter()

Steps apply in the order in which they were given, so a later one uses the names that earlier ones
made. The table's new name, if any, is set last: a crash in between leaves the altered table under
its old name.
"""

from __future__ import annotations

from typing import Any

from kudulite.chain.partition import RangeWithHashSchema
from kudulite.chain.partitioning import RangePartition, checked_range, range_of
from kudulite.client.table import Table
from kudulite.errors import NotSupportedError, SchemaError, UsageError
from kudulite.model.new_schema import column
from kudulite.model.schema import Column
from kudulite.model.types import ColumnType, parse_type
from kudulite.model.types import decimal as decimal_type
from kudulite.model.types import varchar as varchar_type
from kudulite.table.table_names import rename_table, table_folder
from kudulite.upkeep.alter import Step, TableDraft, alter_table


class ColumnSpec:
    """One column that is being added or altered; every method returns the spec.

    `options` holds what was said, None standing for nothing.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options

    def __repr__(self) -> str:
        said = {key: value for key, value in self.options.items() if value is not None}
        options = "".join(f", {key}={value}" for key, value in said.items())
        return f"ColumnSpec({self.name!r}{options})"

    def type(self, type_: ColumnType | str) -> ColumnSpec:
        """Set the column's type, by object or name."""
        self.options["type"] = type_
        return self

    def nullable(self, is_nullable: bool = True) -> ColumnSpec:
        """Say whether cells may be null."""
        self.options["nullable"] = is_nullable
        return self

    def default(self, value: Any) -> ColumnSpec:
        """Set what an insert that leaves the cell unset stores."""
        self.options["default"] = value
        return self

    def remove_default(self) -> ColumnSpec:
        """Take the default of an existing column away."""
        self.options["default"] = None
        self.options["remove_default"] = True
        return self

    def rename(self, new_name: str) -> ColumnSpec:
        """Rename an existing column."""
        self.options["rename"] = new_name
        return self

    def encoding(self, encoding: str) -> ColumnSpec:
        """Set how values are laid out on disk."""
        self.options["encoding"] = encoding
        return self

    def compression(self, compression: str | None) -> ColumnSpec:
        """Set how pages are compressed on disk; None is not at all.

        "default" is zstd where that makes the column a fifth smaller.
        """
        self.options["compression"] = "none" if compression is None else compression
        return self

    def precision(self, precision: int) -> ColumnSpec:
        """Set the number of digits of a decimal column, 1 to 38."""
        self.options["precision"] = precision
        return self

    def scale(self, scale: int) -> ColumnSpec:
        """Set the number of digits of a decimal column after the point; 0 if it is not said."""
        self.options["scale"] = scale
        return self

    def length(self, length: int) -> ColumnSpec:
        """Set the number of characters that a varchar column may hold."""
        self.options["length"] = length
        return self

    def comment(self, comment: str) -> ColumnSpec:
        """Set a comment of at most 256 bytes."""
        self.options["comment"] = comment
        return self

    def mutable(self, is_mutable: bool = True) -> ColumnSpec:
        """Say whether updates may change cells; else they keep the value of their row's insert.

        `update` and `upsert` of a row that is there are refused if they set such a cell, whatever
        the value; `update_ignore` and `upsert_ignore` leave it as it is.
        """
        self.options["mutable"] = is_mutable
        return self

    def build(self) -> Column:
        """Return the new column. Raises SchemaError."""
        options = self.options
        if options.get("rename") is not None or options.get("remove_default"):
            raise NotSupportedError(
                f"column {self.name!r}: rename and remove_default are for the columns of a table"
                " that exists; see Client.new_table_alterer"
            )
        nullable, mutable = options.get("nullable"), options.get("mutable")
        return column(
            self.name,
            described_type(self.name, options),
            nullable=True if nullable is None else nullable,
            default=options.get("default"),
            encoding=options.get("encoding") or "auto",
            compression=options.get("compression") or "default",
            comment=options.get("comment") or "",
            mutable=True if mutable is None else mutable,
        )


class TableAlterer:
    """Alters one table; made by `Client.new_table_alterer`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._steps: list[Step] = []
        self._new_name: str | None = None

    def __repr__(self) -> str:
        rename = "" if self._new_name is None else f", renamed to {self._new_name!r}"
        return f"<kudulite alterer of table {self._table.name!r}: {len(self._steps)} steps{rename}>"

    def rename(self, table_name: str) -> TableAlterer:
        """Give the table another name."""
        table_folder(self._table.path.parent, table_name)
        self._new_name = table_name
        return self

    def add_column(
        self,
        name: str,
        type_: ColumnType | str | None = None,
        nullable: bool | None = None,
        compression: str | None = None,
        encoding: str | None = None,
        default: Any = None,
        mutable: bool | None = None,
    ) -> ColumnSpec:
        """Add a column, nullable and mutable unless said otherwise; return its spec to refine.

        Existing rows show its default. A column that is NOT NULL needs a default.
        """
        options = {
            "type": type_,
            "nullable": nullable,
            "compression": compression,
            "encoding": encoding,
            "default": default,
            "mutable": mutable,
        }
        spec = ColumnSpec(name, options)
        self._steps.append(lambda draft: draft.add_column(spec.build()))
        return spec

    def alter_column(self, name: str, rename_to: str | None = None) -> ColumnSpec:
        """Change a column by the spec that is returned.

        Its name, and what inserts store that leave the cell unset; encoding and compression of
        files that are written later; its comment; whether it is mutable. A type can be widened (no
        key column's): int8 to int64, float to double, decimal to more digits, varchar to more
        letters or to string; files stay as they are. Nullability is fixed.
        """
        spec = ColumnSpec(name, {})
        if rename_to is not None:
            spec.rename(rename_to)
        self._alter_by(spec)
        return spec

    def _alter_by(self, spec: ColumnSpec) -> None:
        self._steps.append(lambda draft: _changed(draft, spec))

    def drop_column(self, name: str) -> TableAlterer:
        """Drop a column that is not part of the key, also from what is read of the past."""
        self._steps.append(lambda draft: draft.drop_column(name))
        return self

    def add_range_partition(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str = "inclusive",
        upper_bound_type: str = "exclusive",
    ) -> TableAlterer:
        """Add an empty range; bounds are given as to `Partitioning.add_range_partition`."""
        given = (lower_bound, upper_bound, lower_bound_type, upper_bound_type)
        self._steps.append(lambda draft: draft.add_range(_range_in(draft, given)))
        return self

    def add_custom_range_partition(self, range_partition: RangePartition) -> TableAlterer:
        """Add an empty range that has hash partitions of its own."""

        given = checked_range(range_partition)
        self._steps.append(lambda draft: draft.add_range(given.build(_range_columns(draft))))
        return self

    def drop_range_partition(
        self,
        lower_bound: Any = None,
        upper_bound: Any = None,
        lower_bound_type: str = "inclusive",
        upper_bound_type: str = "exclusive",
    ) -> TableAlterer:
        """Drop a range by its exact bounds, with its rows; moments before still show them.

        Writes that are under way are refused. A range that is added later is empty.
        """
        given = (lower_bound, upper_bound, lower_bound_type, upper_bound_type)
        self._steps.append(lambda draft: draft.drop_range(_range_in(draft, given)))
        return self

    def set_history_retention(self, seconds: int) -> TableAlterer:
        """Set for how many seconds the past stays readable, from now on."""
        self._steps.append(lambda draft: draft.keep_history(seconds))
        return self

    def set_owner(self, new_owner: str) -> TableAlterer:
        """Name the table's owner, in at most 128 bytes. It is a text: nothing is enforced by it."""
        self._steps.append(lambda draft: draft.set_owner(new_owner))
        return self

    def set_comment(self, new_comment: str) -> TableAlterer:
        """Set the table's comment, at most 256 bytes; an empty one removes it."""
        self._steps.append(lambda draft: draft.set_comment(new_comment))
        return self

    def alter(self) -> Table:
        """Apply the steps, all or none, and return the table.

        Waits for commits that are under way. Raises SchemaError, NotSupportedError,
        TableExistsError, LockTimeoutError, TimestampError.
        """
        if not self._steps and self._new_name is None:
            raise UsageError(f"table {self._table.name!r}: no alter steps provided")
        store = self._table._store
        if self._steps:
            alter_table(store, self._steps)
            self._steps = []
        if self._new_name is not None:
            store, self._new_name = rename_table(store, self._new_name), None
        return Table(store)


def _range_in(draft: TableDraft, given: tuple[Any, Any, str, str]) -> RangeWithHashSchema:
    """Return the range between two bounds, over the draft's range columns."""
    return range_of(_range_columns(draft), *given)


def _range_columns(draft: TableDraft) -> list[Column]:
    return [draft.schema.column(name) for name in draft.range_columns]


# Parameters of types that may be given beside the type, and the type that has each.
_TYPE_PARAMETERS = {"precision": "decimal", "scale": "decimal", "length": "varchar"}


def altered_type(name: str, options: dict[str, Any], old: ColumnType) -> ColumnType:
    """Return the type of an existing column that is altered; `old` if nothing is said of it."""
    said = {key: options[key] for key in _TYPE_PARAMETERS if options.get(key) is not None}
    given = options.get("type")
    if given is None and not said:
        return old
    if given is None:
        given = old.name
        options = {**options, "type": given}
    if old.name == "decimal" and (given is decimal_type or given == "decimal"):
        options = {**options, "precision": old.precision, "scale": old.scale} | said
    return described_type(name, options)


def described_type(name: str, options: dict[str, Any]) -> ColumnType:
    """Return the type that a column's options describe.

    Raises SchemaError for a parameter that is missing, and for one that the type does not have.
    """
    given = options.get("type")
    if given is None:
        raise SchemaError(f"column {name!r} has no type")
    # The functions kudulite.decimal and kudulite.varchar stand for the types without parameters.
    text = str(given).lower()
    if given is decimal_type or text == "decimal":
        if options.get("precision") is None:
            raise SchemaError(f"column {name!r}: decimal needs a precision")
        column_type = decimal_type(options["precision"], options.get("scale") or 0)
    elif given is varchar_type or text == "varchar":
        if options.get("length") is None:
            raise SchemaError(f"column {name!r}: varchar needs a length")
        column_type = varchar_type(options["length"])
    else:
        column_type = given if isinstance(given, ColumnType) else parse_type(text)
    for parameter, owner in _TYPE_PARAMETERS.items():
        value = options.get(parameter)
        if value is not None and value != getattr(column_type, parameter):
            reason = (
                f"the type {column_type} says another one; leave the {parameter} out"
                if column_type.name == owner
                else f"{column_type} has no {parameter}, only {owner} has"
            )
            raise SchemaError(f"column {name!r}: {parameter} {value}: {reason}")
    return column_type


def _changed(draft: TableDraft, spec: ColumnSpec) -> TableDraft:
    """Return the draft with what the spec says of an existing column."""
    options = {name: value for name, value in spec.options.items() if value is not None}
    if "nullable" in options:
        raise NotSupportedError(
            f"column {spec.name!r}: its nullable cannot be altered; add a column, copy the values,"
            " and drop this one"
        )
    names = {"rename": "name", "default": "write_default"}
    options_known = ("rename", "default", "encoding", "compression", "comment", "mutable")
    fields = {names.get(name, name): options[name] for name in options_known if name in options}
    if options.get("remove_default"):
        fields["write_default"] = None
    old = draft.schema.column(spec.name)
    new_type = altered_type(spec.name, options, old.type)
    if new_type != old.type or "type" in options:
        fields["type"] = new_type
    if not fields:
        raise UsageError(f"column {spec.name!r}: no alter steps provided")
    return draft.change_column(spec.name, fields)
