"""Table alterer, in kudu-python's words: collects steps, and applies them in one new version.

    alterer = client.new_table_alterer(table)
    alterer.add_column("city", kudu.string, default="")
    alterer.alter_column("host", rename_to="machine").comment("where it was measured")
    table = alterer.drop_column("note").alter()

Steps apply in the order in which they were given, so a later one uses the names that earlier ones
made. The table's new name, if any, is set last: a crash in between leaves the altered table under
its old name.
"""

from __future__ import annotations

from typing import Any

from kudulite.chain.partition import RangeWithHashSchema
from kudulite.client.schema_builder import (
    ColumnSpec,
    RangePartition,
    SchemaBuilder,
    altered_type,
    checked_range,
    range_of,
)
from kudulite.client.table import Table
from kudulite.client.table_names import rename_table
from kudulite.errors import NotSupportedError, UsageError
from kudulite.model.schema import Column
from kudulite.model.types import ColumnType
from kudulite.table.table_list import table_folder
from kudulite.upkeep.alter import Step, TableDraft, alter_table


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
        column = (name, type_, nullable, compression, encoding)
        spec = SchemaBuilder().add_column(*column, default=default, mutable=mutable)
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


def _changed(draft: TableDraft, spec: ColumnSpec) -> TableDraft:
    """Return the draft with what the spec says of an existing column."""
    options = {name: value for name, value in spec.options.items() if value is not None}
    if "nullable" in options or spec.is_primary_key:
        fixed = "primary key" if spec.is_primary_key else "nullable"
        raise NotSupportedError(
            f"column {spec.name!r}: its {fixed} cannot be altered; add a column, copy the values,"
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
