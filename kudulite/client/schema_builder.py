"""Schema builder, in kudu-python's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kudulite.errors import NotSupportedError, SchemaError
from kudulite.model.schema import NEW_COLUMN_ID, Column, Schema
from kudulite.model.types import ColumnType, parse_type
from kudulite.model.types import decimal as decimal_type
from kudulite.model.types import varchar as varchar_type

_NON_UNIQUE = "a key that is not unique is not supported; add a column that makes it unique"


class ColumnSpec:
    """One column that is being described or altered; every method returns the spec.

    `options` holds what was said, None standing for nothing.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.is_primary_key = False

    def __repr__(self) -> str:
        said = {key: value for key, value in self.options.items() if value is not None}
        options = "".join(f", {key}={value}" for key, value in said.items())
        return f"ColumnSpec({self.name!r}{options})"

    def type(self, column_type: ColumnType | str) -> ColumnSpec:
        """Set the column's type, by object or name."""
        self.options["type"] = column_type
        return self

    def nullable(self, is_nullable: bool = True) -> ColumnSpec:
        """Say whether cells may be null."""
        self.options["nullable"] = is_nullable
        return self

    def primary_key(self) -> ColumnSpec:
        """Make the column the whole primary key."""
        self.is_primary_key = True
        return self.nullable(False)

    def non_unique_primary_key(self) -> ColumnSpec:
        """Raise NotSupportedError: every primary key is unique."""
        raise NotSupportedError(f"column {self.name!r}: {_NON_UNIQUE}")

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
        """Set how pages are compressed on disk; None is not at all."""
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

    def block_size(self, block_size: int) -> ColumnSpec:
        """Do nothing: pages of base data have one size for all columns."""
        return self

    def mutable(self, is_mutable: bool = True) -> ColumnSpec:
        """Say that cells may be updated. Raises NotSupportedError for a column that must not be."""
        if not is_mutable:
            raise NotSupportedError(
                f"column {self.name!r}: immutable columns are not supported; leave the column out"
                " of updates"
            )
        return self

    def build(self) -> Column:
        """Return the new column. Raises SchemaError."""
        options = self.options
        if options.get("rename") is not None or options.get("remove_default"):
            raise NotSupportedError(
                f"column {self.name!r}: rename and remove_default are for the columns of a table"
                " that exists; see Client.new_table_alterer"
            )
        column_type = _type_of(self.name, options)
        nullable = options.get("nullable")
        return Column(
            id=NEW_COLUMN_ID,
            name=self.name,
            type=column_type,
            nullable=True if nullable is None else nullable,
            read_default=options.get("default"),
            write_default=options.get("default"),
            encoding=options.get("encoding") or "auto",
            compression=options.get("compression") or "default",
            comment=options.get("comment") or "",
        )


def altered_type(name: str, options: dict[str, Any], old: ColumnType) -> ColumnType:
    """Return the type of an existing column that is altered; `old` if nothing is said of it."""
    said = {key: options[key] for key in ("precision", "scale", "length") if options.get(key)}
    if options.get("type") is None:
        if not said:
            return old
        options = {**options, "type": old.name}
    if old.name == "decimal":
        options = {"precision": old.precision, "scale": old.scale} | options | said
    return _type_of(name, options)


def _type_of(name: str, options: dict[str, Any]) -> ColumnType:
    given = options.get("type")
    if given is None:
        raise SchemaError(f"column {name!r} has no type")
    if isinstance(given, ColumnType):
        return given
    # kudu.decimal and kudu.varchar are functions here, and types in kudu-python.
    text = str(given).lower()
    if given is decimal_type or text == "decimal":
        if options.get("precision") is None:
            raise SchemaError(f"column {name!r}: decimal needs a precision")
        return decimal_type(options["precision"], options.get("scale") or 0)
    if given is varchar_type or text == "varchar":
        if options.get("length") is None:
            raise SchemaError(f"column {name!r}: varchar needs a length")
        return varchar_type(options["length"])
    return parse_type(text)


class SchemaBuilder:
    """Collects columns and the primary key of a new table."""

    def __init__(self) -> None:
        self._specs: list[ColumnSpec] = []
        self._key_names: list[str] | None = None

    def __repr__(self) -> str:
        keys = self._key_names or [spec.name for spec in self._specs if spec.is_primary_key]
        columns = ", ".join(map(repr, self._specs))
        return f"<kudulite schema builder: {columns or 'no columns'}; key {', '.join(keys)}>"

    def add_column(
        self,
        name: str,
        type_: ColumnType | str | None = None,
        nullable: bool | None = None,
        compression: str | None = None,
        encoding: str | None = None,
        primary_key: bool = False,
        non_unique_primary_key: bool = False,
        block_size: int | None = None,
        default: Any = None,
        precision: int | None = None,
        scale: int | None = None,
        length: int | None = None,
        comment: str | None = None,
    ) -> ColumnSpec:
        """Add a column, nullable unless said otherwise; returns its spec to refine.

        Arguments stand in kudu-python's order. `block_size` has no effect.
        """
        options = {
            "type": type_,
            "nullable": nullable,
            "default": default,
            "encoding": encoding,
            "compression": compression,
            "comment": comment,
            "precision": precision,
            "scale": scale,
            "length": length,
        }
        spec = ColumnSpec(name, options)
        if primary_key:
            spec.primary_key()
        if non_unique_primary_key:
            spec.non_unique_primary_key()
        self._specs.append(spec)
        return spec

    def copy_column(self, column: Column) -> ColumnSpec:
        """Add a column like one of another schema; returns its spec to refine."""
        options = {
            "type": column.type,
            "nullable": column.nullable,
            "default": column.write_default,
            "encoding": column.encoding,
            "compression": column.compression,
            "comment": column.comment,
        }
        self._specs.append(ColumnSpec(column.name, options))
        return self._specs[-1]

    def set_primary_keys(self, names: Sequence[str]) -> SchemaBuilder:
        """Set the key columns, in key order; they must be NOT NULL."""
        self._key_names = list(names)
        return self

    def set_non_unique_primary_keys(self, names: Sequence[str]) -> SchemaBuilder:
        """Raise NotSupportedError: every primary key is unique."""
        raise NotSupportedError(f"primary key {', '.join(names)}: {_NON_UNIQUE}")

    def build(self) -> Schema:
        """Return the schema, key columns first. Raises SchemaError."""
        names = self._key_names
        if names is None:
            names = [spec.name for spec in self._specs if spec.is_primary_key]
        columns = [spec.build() for spec in self._specs]
        return Schema.build(columns, names)
