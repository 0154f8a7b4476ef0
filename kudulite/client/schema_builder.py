"""Schema builder, in kudu-python's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kudulite.errors import SchemaError
from kudulite.model.schema import NEW_COLUMN_ID, Column, Schema
from kudulite.model.types import ColumnType, parse_type
from kudulite.model.types import decimal as decimal_type
from kudulite.model.types import varchar as varchar_type


class ColumnSpec:
    """One column that is being described; every method returns the spec."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.options = options
        self.is_primary_key = False

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

    def default(self, value: Any) -> ColumnSpec:
        """Set what an insert that leaves the cell unset stores."""
        self.options["default"] = value
        return self

    def encoding(self, encoding: str) -> ColumnSpec:
        """Set how values are laid out on disk."""
        self.options["encoding"] = encoding
        return self

    def compression(self, compression: str) -> ColumnSpec:
        """Set how pages are compressed on disk."""
        self.options["compression"] = compression
        return self

    def comment(self, comment: str) -> ColumnSpec:
        """Set a comment of at most 256 bytes."""
        self.options["comment"] = comment
        return self

    def build(self) -> Column:
        """Return the column. Raises SchemaError."""
        options = self.options
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


def _type_of(name: str, options: dict[str, Any]) -> ColumnType:
    given = options.get("type")
    if given is None:
        raise SchemaError(f"column {name!r} has no type")
    if isinstance(given, ColumnType):
        return given
    text = str(given).lower()
    if text == "decimal":
        if options.get("precision") is None:
            raise SchemaError(f"column {name!r}: decimal needs a precision")
        return decimal_type(options["precision"], options.get("scale") or 0)
    if text == "varchar":
        if options.get("length") is None:
            raise SchemaError(f"column {name!r}: varchar needs a length")
        return varchar_type(options["length"])
    return parse_type(text)


class SchemaBuilder:
    """Collects columns and the primary key of a new table."""

    def __init__(self) -> None:
        self._specs: list[ColumnSpec] = []
        self._key_names: list[str] | None = None

    def add_column(
        self,
        name: str,
        type_: ColumnType | str | None = None,
        nullable: bool | None = None,
        *,
        primary_key: bool = False,
        default: Any = None,
        encoding: str | None = None,
        compression: str | None = None,
        comment: str | None = None,
        precision: int | None = None,
        scale: int | None = None,
        length: int | None = None,
    ) -> ColumnSpec:
        """Add a column, nullable unless said otherwise; returns its spec to refine."""
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
        self._specs.append(spec)
        return spec

    def set_primary_keys(self, names: Sequence[str]) -> SchemaBuilder:
        """Set the key columns, in key order; they must be NOT NULL."""
        self._key_names = list(names)
        return self

    def build(self) -> Schema:
        """Return the schema, key columns first. Raises SchemaError."""
        names = self._key_names
        if names is None:
            names = [spec.name for spec in self._specs if spec.is_primary_key]
        columns = [spec.build() for spec in self._specs]
        return Schema.build(columns, names)
