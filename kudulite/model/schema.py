"""Columns and schemas: names, types, ids, defaults, and the primary key.

A column has two defaults. The read default is the value of rows written before the column was
added; it never changes. The write default fills cells that an insert leaves unset; it may change.

A PartialRow has only some of its cells set. It serves as a bound of scans and range partitions, as
in kudu-python. A cell that is not set is not null: in a bound it is the least value of its column.

**Invariants**: of a Schema: (1) the key columns are the first, in key order; (2) they are NOT NULL
and of key types; (3) names and ids are unique; (4) no id is used twice in the lifetime of a table,
so `next_column_id` is above all ids that ever existed; (5) nothing changes after construction: an
altered table has another Schema.

**Source**: Kudu common/schema.cc; docs/schema_design.adoc, "Column encoding", for the encodings of
each type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from kudulite.errors import ColumnNotFoundError, CorruptionError, NotSupportedError, SchemaError
from kudulite.model.encoded_key import KeyEncoder, key_width
from kudulite.model.types import ColumnType, is_unicode, parse_type
from kudulite.model.values import canonical_value, value_from_json, value_to_json
from kudulite.shown.html import html_table

FIELD_ID_KEY = b"PARQUET:field_id"
NEW_COLUMN_ID = -1  # a column that no schema has taken up yet
COLUMN_ID_MAX = (1 << 31) - 1  # a Parquet field id; the log has one more bit
NAME_BYTES_MAX = 256
AUTO_INCREMENTING_ID = "auto_incrementing_id"
COMMENT_BYTES_MAX = 256

COMPRESSIONS = ("default", "none", "lz4", "snappy", "zstd", "gzip")
_COMPRESSION_ALIASES = {"zlib": "gzip", "no_compression": "none"}
_FIELD_TYPES: dict[str, type] = dict.fromkeys(("nullable", "mutable", "auto_incrementing"), bool)
_FIELD_TYPES |= dict.fromkeys(("encoding", "compression", "comment"), str)
_ENCODING_ALIASES = {"bit_shuffle": "bitshuffle", "dictionary": "dict"}


def encodings_of(column_type: ColumnType) -> tuple[str, ...]:
    """Return the encodings that a column of this type may have."""
    if column_type.is_array:
        return ("auto", "plain", "dict")
    if column_type.is_bytes:
        return ("auto", "plain", "dict", "prefix")
    if column_type.name == "bool":
        return ("auto", "plain", "rle")
    if column_type.is_float or column_type.key_width == 16:
        return ("auto", "plain", "bitshuffle")
    return ("auto", "plain", "rle", "bitshuffle")


@dataclass(frozen=True)
class Column:
    """One column. Defaults are kept in canonical form, so equal columns compare equal.

    Floats are equal as defaults if they are written alike: NaN is then equal to itself, and -0.0
    not to 0.0.

    A cell of a column that is not `mutable` keeps the value that the insert of its row gave it. The
    engine numbers new rows in a column that is `auto_incrementing`.
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    read_default: Any = field(default=None, compare=False)
    write_default: Any = field(default=None, compare=False)
    encoding: str = "auto"
    compression: str = "default"
    comment: str = ""
    mutable: bool = True
    auto_incrementing: bool = False
    _compared_defaults: tuple[Any, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_identifier(self.name)
        if not isinstance(self.type, ColumnType):
            raise SchemaError(f"column {self.name!r}: {self.type!r} is no column type")
        for name, kind in _FIELD_TYPES.items():
            if not isinstance(given := getattr(self, name), kind):
                what = "a text" if kind is str else "True or False"
                raise SchemaError(f"column {self.name!r}: {name} is {what}, not {given!r}")
        encoding = self.encoding.lower()
        encoding = _ENCODING_ALIASES.get(encoding, encoding)
        if encoding not in encodings_of(self.type):
            raise SchemaError(
                f"invalid encoding for column {self.name!r}: {self.encoding!r} on {self.type}; "
                f"possible: {', '.join(encodings_of(self.type))}"
            )
        if self.type.is_array and (self.read_default, self.write_default) != (None, None):
            raise SchemaError(f"column {self.name!r}: a column of {self.type} has no default")
        compression = self.compression.lower()
        compression = _COMPRESSION_ALIASES.get(compression, compression)
        if compression not in COMPRESSIONS:
            raise SchemaError(
                f"invalid compression for column {self.name!r}: {self.compression!r}; "
                f"possible: {', '.join(COMPRESSIONS)}"
            )
        if not is_unicode(self.comment) or len(self.comment.encode()) > COMMENT_BYTES_MAX:
            raise SchemaError(
                f"column {self.name!r}: comment over {COMMENT_BYTES_MAX} bytes, or not Unicode"
            )
        set_field = object.__setattr__  # the frozen dataclass is being built
        set_field(self, "encoding", encoding)
        set_field(self, "compression", compression)
        for name in ("read_default", "write_default"):
            set_field(self, name, canonical_value(getattr(self, name), self.type, self.name))
        defaults = self.read_default, self.write_default
        texts = (v.hex() if isinstance(v, float) else v for v in defaults)
        set_field(self, "_compared_defaults", tuple(texts))

    def __repr__(self) -> str:
        """Return `int64 "id" NOT NULL`, as in Kudu, then the attributes that are not default."""
        name = self.name.replace('"', '""')
        null = [] if self.nullable else ["NOT NULL"]
        return " ".join([f'{self.type} "{name}"', *null, *self._attributes()])

    def _attributes(self) -> list[str]:
        """Return the attributes that are not default, as SQL shows them."""
        parts = [] if self.write_default is None else [f"DEFAULT {self.write_default!r}"]
        parts += [] if self.encoding == "auto" else [f"ENCODING {self.encoding}"]
        parts += [] if self.compression == "default" else [f"COMPRESSION {self.compression}"]
        parts += [] if self.mutable else ["IMMUTABLE"]
        return parts

    @property
    def type_attributes(self) -> ColumnType:
        """The object with `precision`, `scale` and `length`: the type itself."""
        return self.type

    @property
    def arrow_field(self) -> pa.Field:
        """The Arrow field of the column, with its id as Parquet field id."""
        field_id = {FIELD_ID_KEY: str(self.id).encode()}
        return pa.field(self.name, self.type.arrow, nullable=self.nullable, metadata=field_id)

    def equals(self, other: object) -> bool:
        """Return whether `other` is a column like this in all but its id."""
        return isinstance(other, Column) and replace(self, id=other.id) == other

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` gives an equal column back."""
        form = {
            "id": self.id,
            "name": self.name,
            "type": str(self.type),
            "nullable": self.nullable,
            "read_default": value_to_json(self.read_default, self.type),
            "write_default": value_to_json(self.write_default, self.type),
            "encoding": self.encoding,
            "compression": self.compression,
            "comment": self.comment,
        }
        form |= {} if self.mutable else {"mutable": False}
        return form | ({"auto_incrementing": True} if self.auto_incrementing else {})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Column:
        """Return the column that `to_json` stored."""
        fields = {"mutable": True, "auto_incrementing": False, **stored}
        kinds = {"id": int, "comment": str} | dict.fromkeys(
            ("nullable", "mutable", "auto_incrementing"), bool
        )
        for name, kind in kinds.items():
            if type(fields[name]) is not kind:
                raise TypeError(f"{name} {fields[name]!r} of a column is no {kind.__name__}")
        fields["type"] = column_type = parse_type(fields["type"])
        for name in ("read_default", "write_default"):
            fields[name] = value_from_json(fields[name], column_type, fields["name"])
        return cls(**fields)


def _check_identifier(name: str) -> None:
    if not isinstance(name, str) or not name:
        raise SchemaError(f"column name {name!r}: a name is a non-empty string")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise SchemaError(f"column name {name!r} has no UTF-8 form") from error
    if size > NAME_BYTES_MAX or "\0" in name:
        raise SchemaError(
            f"column name {name[:40]!r}: a name has at most {NAME_BYTES_MAX} bytes and no NUL"
        )


def auto_incrementing_column() -> Column:
    """Return the column that follows the key columns of a key that is not unique."""
    column_type = parse_type("int64")
    return Column(
        NEW_COLUMN_ID, AUTO_INCREMENTING_ID, column_type, nullable=False, auto_incrementing=True
    )


def _check_not_reserved(name: str) -> None:
    if name.lower() == AUTO_INCREMENTING_ID:
        raise SchemaError(
            f"can't add a column with reserved name: {name}; {AUTO_INCREMENTING_ID} is a reserved"
            " column name: a primary key that is not unique adds it"
        )


@dataclass(frozen=True)
class Schema:
    """The columns of a table, key columns first. `schema` (new_schema.py) makes new ones."""

    columns: tuple[Column, ...]
    key_count: int
    next_column_id: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if not 1 <= self.key_count <= len(self.columns):
            raise SchemaError(
                f"a table needs a primary key of at least one of its columns; got {self.key_count} "
                f"key columns of {len(self.columns)}"
            )
        for column in self.key_columns:
            if not column.type.is_key_type:
                raise SchemaError(
                    f"column {column.name!r}: {column.type} may not be part of a primary key"
                )
            if column.nullable:
                raise SchemaError(
                    f"column {column.name!r}: nullable key columns are not supported; "
                    "make it nullable=False"
                )
            if not column.mutable:
                raise SchemaError(
                    f"column {column.name!r}: a key column never changes, so it cannot be made"
                    " immutable; leave mutable=False out"
                )
        numbered = [column for column in self.columns if column.auto_incrementing]
        last = self.key_columns[-1]
        if numbered and (numbered != [last] or last.name != AUTO_INCREMENTING_ID):
            raise SchemaError(
                f"column {numbered[0].name!r} is auto-incrementing: expected one such column,"
                f" {AUTO_INCREMENTING_ID!r}, as the last one of the key"
            )
        if numbered and (last.type.name != "int64" or self.key_count == 1):
            raise SchemaError(
                f"column {last.name!r} is {last.type} and number {self.key_count} of the key,"
                " expected int64 after the columns of the key"
            )
        _check_unique("name", [column.name for column in self.columns])
        _check_unique("id", [column.id for column in self.columns])
        ids = [column.id for column in self.columns]
        if min(ids) < 0 or max(ids) >= self.next_column_id:
            raise SchemaError(f"column ids {ids} are not all within 0..{self.next_column_id - 1}")

    def __repr__(self) -> str:
        columns = ", ".join(map(repr, self.columns))
        return f"Schema({columns}, PRIMARY KEY ({', '.join(self.key_names)}))"

    def __str__(self) -> str:
        """Return one aligned line for each column, and one for the key."""
        cells = [
            (
                column.name if column.name.isprintable() else repr(column.name),
                str(column.type),
                " ".join(["NULLABLE" if column.nullable else "NOT NULL", *column._attributes()]),
            )
            for column in self.columns
        ]
        name_width, type_width = (max(len(cell[i]) for cell in cells) for i in (0, 1))
        lines = [f"{name:{name_width}}  {kind:{type_width}}  {rest}" for name, kind, rest in cells]
        return "\n".join([*lines, f"PRIMARY KEY ({', '.join(self.key_names)})"])

    def _repr_html_(self) -> str:
        """Return the columns as an HTML table, for notebooks."""
        names = ("column", "type", "key", "nullable", "default", "comment")
        rows = [
            (
                column.name,
                column.type,
                "key" if column.name in self.key_names else "" if column.mutable else "immutable",
                "nullable" if column.nullable else "NOT NULL",
                "" if column.write_default is None else repr(column.write_default),
                column.comment,
            )
            for column in self.columns
        ]
        return html_table(names, rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the columns only: an encoder of keys cannot be pickled, and is made again."""
        return Schema, (self.columns, self.key_count, self.next_column_id)

    @classmethod
    def build(cls, columns: Sequence[Column], primary_key: Sequence[str]) -> Schema:
        """Return a new table's schema, with key columns in front in the order of `primary_key`.

        Ids are assigned from 0 in the order of `columns`, whose own ids are ignored. They keep that
        order, which Spark shows.
        """
        names = [column.name for column in columns]
        for column in columns:
            if not column.auto_incrementing:
                _check_not_reserved(column.name)
        _check_unique("name", names)
        _check_unique("primary key column", list(primary_key))
        for name in primary_key:
            if name not in names:
                raise ColumnNotFoundError(
                    f"primary key column {name!r} is not in the schema; columns: {', '.join(names)}"
                )
        numbered = {c.name: replace(c, id=i) for i, c in enumerate(columns)}
        ordered = [numbered.pop(name) for name in primary_key]
        return cls((*ordered, *numbered.values()), len(primary_key), next_column_id=len(columns))

    def with_column(self, column: Column) -> Schema:
        """Return the schema with a new column at the end, under an id that no column ever had."""
        _check_not_reserved(column.name)
        if column.name in self:
            raise SchemaError(f"the column already exists: {column.name!r}")
        if not column.nullable and column.read_default is None:
            raise SchemaError(
                f"column {column.name!r}: a NOT NULL column that is added needs a default, which"
                " the rows that are there show"
            )
        added = replace(column, id=self.next_column_id)
        return Schema((*self.columns, added), self.key_count, self.next_column_id + 1)

    def without_column(self, name: str) -> Schema:
        """Return the schema without a column; its id is not used again."""
        if name == self.auto_incrementing:
            raise SchemaError(f"can't drop column: {name}, which numbers the rows of the key")
        if name in self.key_names:
            raise SchemaError(f"cannot remove a key column: {name!r}")
        kept = tuple(c for c in self.columns if c is not self.column(name))
        return replace(self, columns=kept)

    def only_adds_to(self, older: Schema) -> bool:
        """Return whether this is `older` with nullable columns without defaults added, or none."""
        count = len(older)
        added = self.columns[count:]
        has_defaults = any(c.read_default is not None or c.write_default is not None for c in added)
        return (
            (self.key_count, self.columns[:count]) == (older.key_count, older.columns)
            and all(column.nullable for column in added)
            and not has_defaults
        )

    def with_changed(self, name: str, fields: Mapping[str, Any]) -> Schema:
        """Return the schema with changed `fields` of a column.

        These are name, type, write default, encoding, compression, comment and mutable. A type can
        only be widened, and not in the key, whose encoding depends on it. Neither nullability nor
        the read default can change, because files rely on them.
        """
        old = self.column(name)
        fixed = {"name": "name", "write_default": "default", "type": "type", "mutable": "mutable"}
        for given in fixed.keys() & fields.keys() if old.auto_incrementing else ():
            raise SchemaError(f"can't change {fixed[given]} for column: {name}")
        if not old.type.can_widen_to(new_type := fields.get("type", old.type)):
            raise NotSupportedError(
                f"column {name!r}: its type cannot be altered from {old.type} to {new_type}, only"
                " widened; add a column, copy the values, and drop this one"
            )
        if name in self.key_names and new_type != old.type:
            raise NotSupportedError(
                f"column {name!r}: its type cannot be altered: it is part of the primary key"
            )
        new = replace(old, **fields)
        if new.name != name and new.name in self:
            raise SchemaError(f"cannot rename {name!r}: the column already exists: {new.name!r}")
        assert (new.id, new.nullable) == (old.id, old.nullable)
        return replace(self, columns=tuple(new if c is old else c for c in self.columns))

    @cached_property
    def has_later_attributes(self) -> bool:
        """Whether files that hold the schema need a later format: older software misreads it."""
        return any(not column.mutable or column.auto_incrementing for column in self.columns)

    @cached_property
    def auto_incrementing(self) -> str | None:
        """The name of the column that makes a key unique which is not; None where the key is."""
        last = self.columns[self.key_count - 1]
        return last.name if last.auto_incrementing else None

    @staticmethod
    def get_auto_incrementing_column_name() -> str:
        """Return the name of that column, which is the same in all tables."""
        return AUTO_INCREMENTING_ID

    @cached_property
    def names(self) -> list[str]:
        """Names of all columns, in order."""
        return [column.name for column in self.columns]

    @cached_property
    def key_names(self) -> list[str]:
        """Names of the primary key columns, in key order."""
        return [column.name for column in self.key_columns]

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """The primary key columns, in key order."""
        return self.columns[: self.key_count]

    @cached_property
    def value_columns(self) -> tuple[Column, ...]:
        """The columns that are not part of the primary key."""
        return self.columns[self.key_count :]

    @cached_property
    def key_types(self) -> tuple[ColumnType, ...]:
        """Types of the primary key columns, in key order."""
        return tuple(column.type for column in self.key_columns)

    @cached_property
    def key_width(self) -> int | None:
        """The width in bytes of encoded keys, None if it varies."""
        return key_width(self.key_types)

    @cached_property
    def key_encoder(self) -> KeyEncoder:
        """The encoder of single primary keys."""
        return KeyEncoder(self.key_types)

    @cached_property
    def _index_by_name(self) -> dict[str, int]:
        return {column.name: i for i, column in enumerate(self.columns)}

    @cached_property
    def _column_by_id(self) -> dict[int, Column]:
        return {column.id: column for column in self.columns}

    def __contains__(self, name: object) -> bool:
        return name in self._index_by_name

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    def __getitem__(self, key: str | int) -> Column:
        """Return a column by name, or by number as in a list, or raise ColumnNotFoundError."""
        return self.column(key) if isinstance(key, str) else self.at(key)

    def at(self, i: int) -> Column:
        """Return a column by number, from the end if negative, or raise ColumnNotFoundError."""
        if not -len(self.columns) <= i < len(self.columns):
            raise ColumnNotFoundError(f"no column {i}; columns: {', '.join(self.names)}")
        return self.columns[i]

    def equals(self, other: object) -> bool:
        """Return whether `other` has the same columns and key, whatever the ids are."""
        return (
            isinstance(other, Schema)
            and (self.key_count, len(self)) == (other.key_count, len(other))
            and all(mine.equals(column) for mine, column in zip(self, other, strict=True))
        )

    def primary_keys(self) -> list[str]:
        """Return the names of the primary key columns, in key order."""
        return list(self.key_names)

    def primary_key_indices(self) -> list[int]:
        """Return the positions of the primary key columns, in key order."""
        return list(range(self.key_count))

    def new_row(self, record: Any = None) -> PartialRow:
        """Return a row with the cells of `record` set (tuple, list, or dict), or with none."""
        return PartialRow(self.columns, record)

    def index_of(self, name: str) -> int:
        """Return the position of the named column; ColumnNotFoundError lists the columns."""
        index = self._index_by_name.get(name)
        if index is None:
            raise ColumnNotFoundError(f"no column {name!r}; columns: {', '.join(self.names)}")
        return index

    def column(self, name: str) -> Column:
        """Return the named column; ColumnNotFoundError lists the columns."""
        return self.columns[self.index_of(name)]

    def column_by_id(self, column_id: int) -> Column | None:
        """Return the column with this id, or None: it was dropped, or is newer than this schema."""
        return self._column_by_id.get(column_id)

    def arrow_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        """Return the Arrow fields of the named columns (default: all) as a schema."""
        columns = self.columns if names is None else [self.column(name) for name in names]
        return pa.schema(column.arrow_field for column in columns)

    def result_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        """Return the same without column ids, which mean nothing outside the table."""
        columns = self.columns if names is None else [self.column(name) for name in names]
        return pa.schema(pa.field(c.name, c.type.arrow, c.nullable) for c in columns)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `from_json` gives an equal schema back."""
        return {
            "columns": [column.to_json() for column in self.columns],
            "key_count": self.key_count,
            "next_column_id": self.next_column_id,
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Schema:
        """Return the schema that `to_json` stored; CorruptionError if it is not one."""
        try:
            columns = tuple(Column.from_json(column) for column in stored["columns"])
            key_count, next_id = int(stored["key_count"]), int(stored["next_column_id"])
            if next_id > COLUMN_ID_MAX + 1:
                raise ValueError(f"next column id {next_id}, expected at most {COLUMN_ID_MAX + 1}")
            return cls(columns, key_count, next_id)
        except (
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise CorruptionError(f"stored schema is not readable: {error}") from error


def _check_unique(what: str, values: Sequence[Any]) -> None:
    repeated = {value for value in values if values.count(value) > 1}
    if repeated:
        raise SchemaError(f"{what} {sorted(repeated)[0]!r} is given more than once")


def column_at(columns: Sequence[Column], key: str | int) -> Column:
    """Return a column by name, or by number from 0. Raises ColumnNotFoundError."""
    if isinstance(key, str):
        for column in columns:
            if column.name == key:
                return column
    elif isinstance(key, int) and 0 <= key < len(columns):
        return columns[key]
    listed = ", ".join(column.name for column in columns)
    raise ColumnNotFoundError(f"no column {key!r}; columns: {listed}")


class PartialRow(Mapping[str, Any]):
    """Cells by column name, in canonical form, in the order in which they were set."""

    __slots__ = ("_cells", "_columns")

    def __init__(self, columns: Sequence[Column], record: Any = None) -> None:
        self._columns = columns
        self._cells: dict[str, Any] = {}
        if record is not None:
            self.from_record(record)

    def __repr__(self) -> str:
        return f"PartialRow({self._cells!r})"

    def __setitem__(self, key: str | int, value: Any) -> None:
        """Set a cell. Raises ColumnNotFoundError, and SchemaError for a value that does not fit."""
        column = column_at(self._columns, key)
        if value is None and not column.nullable:
            raise SchemaError(f"column {column.name!r} is NOT NULL and was given None")
        self._cells[column.name] = canonical_value(value, column.type, column.name)

    def __getitem__(self, key: str | int) -> Any:
        return self._cells[column_at(self._columns, key).name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def from_record(self, record: Any) -> PartialRow:
        """Set cells from a tuple or list, in column order, or a dict by name or number."""
        if isinstance(record, Mapping):
            cells = list(record.items())
        elif isinstance(record, list | tuple):
            cells = list(enumerate(record))
        else:
            raise SchemaError(f"{record!r} is no row; give a tuple, a list, or a dict")
        for key, value in cells:
            self[key] = value
        return self
