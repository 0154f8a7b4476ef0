"""Types, columns and schemas in kudu-python's terms.

    KuduType            a name and Kudu's number: precision, scale and length are of the column
    ColumnSpec          a column that is being described; with Kudu's texts for what is wrong
    SchemaBuilder       checks what Kudu's client checks, and builds a Schema
    Schema              read-only view of the engine's schema, or of the columns of a scan
    PartialRow          cells by column, converted by `cell_of` (cells.py)

**Invariants**: (1) a Schema and its columns never change; (2) an encoding that its type does not
have is remembered by the Schema and refused by `create_table`, as Kudu's servers do.

**Source**: Kudu python/kudu/schema.pyx; client/schema.cc and schema.h for the checks and numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypedDict, Unpack

from kudulite.client import table_alterer as engine
from kudulite.kudu.cells import cell_of, choice, literal_of, value_of
from kudulite.kudu.errors import (
    KuduColumnNotFound,
    KuduInvalidArgument,
    KuduNotSupported,
    in_kudu_terms,
)
from kudulite.model import new_schema
from kudulite.model.schema import Column, column_at, encodings_of
from kudulite.model.schema import PartialRow as EngineRow
from kudulite.model.schema import Schema as EngineSchema
from kudulite.model.types import DECIMAL_PRECISION_MAX, VARCHAR_LENGTH_MAX, ColumnType

INT8, INT16, INT32, INT64, STRING, BOOL, FLOAT, DOUBLE, BINARY, UNIXTIME_MICROS = range(10)
DECIMAL, VARCHAR, DATE, NESTED = 10, 11, 12, 14
COMPRESSION_DEFAULT, COMPRESSION_NONE, COMPRESSION_SNAPPY, COMPRESSION_LZ4, COMPRESSION_ZLIB = (
    range(5)
)
ENCODING_AUTO, ENCODING_PLAIN, ENCODING_PREFIX = 0, 1, 2
ENCODING_RLE, ENCODING_DICT, ENCODING_BIT_SHUFFLE = 4, 5, 6

_COMPRESSIONS = dict(enumerate(("default", "none", "snappy", "lz4", "zlib")))
_ENCODINGS = {0: "auto", 1: "plain", 2: "prefix", 4: "rle", 5: "dict", 6: "bitshuffle"}
AUTO_INCREMENTING_COLUMN = "auto_incrementing_id"


class KuduType:
    """The kind of a column's values: its name, and as `type` Kudu's number of it."""

    __slots__ = ("name", "type")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.type = number

    def __repr__(self) -> str:
        return f"KuduType({self.name})"

    def new_value(self, value: Any) -> KuduValue:
        """Return a value to compare a column of this type with. Raises TypeError."""
        return KuduValue(self, value)


int8, int16 = KuduType("int8", INT8), KuduType("int16", INT16)
int32, int64 = KuduType("int32", INT32), KuduType("int64", INT64)
string_, binary = KuduType("string", STRING), KuduType("binary", BINARY)
bool_, date = KuduType("bool", BOOL), KuduType("date", DATE)
float_, double_ = KuduType("float", FLOAT), KuduType("double", DOUBLE)
unixtime_micros = KuduType("unixtime_micros", UNIXTIME_MICROS)
decimal, varchar = KuduType("decimal", DECIMAL), KuduType("varchar", VARCHAR)
nested = KuduType("nested", NESTED)
_TYPES = (
    int8, int16, int32, int64, string_, bool_, float_, double_, binary, unixtime_micros, decimal,
    varchar, date, nested,
)  # fmt: skip
_TYPE_OF: dict[object, KuduType] = {kind.name: kind for kind in _TYPES}
_TYPE_OF |= {kind.type: kind for kind in _TYPES}


class KuduValue:
    """A value that a column is compared with; `value` is its form for the engine."""

    def __init__(self, type_: KuduType, value: Any) -> None:
        self.type = type_
        if value is None:
            raise TypeError(f"None is no {type_.name}; use is_null() or is_not_null()")
        self.value = literal_of(type_.name, value)


def kudu_type(given: object) -> KuduType:
    """Return a type by itself, its name or its number. Raises ValueError."""
    if isinstance(given, KuduType):
        return given
    if isinstance(given, ColumnType):
        return _type_named(given.name)
    found = _TYPE_OF.get(given.lower() if isinstance(given, str) else given)
    if found is None:
        raise KuduInvalidArgument(
            f"Invalid type: {given!r}; known: {', '.join(kind.name for kind in _TYPES)}"
        )
    return found


def _type_named(name: str) -> KuduType:
    name = "nested" if name == "array" else name
    return _TYPE_OF.get(name) or KuduType(name, -1)  # timestamp_ntz, which Kudu does not have


class ArrayTypeDescriptor:
    """The type of the elements of an array, as Kudu's number."""

    def __init__(self, element_type: object) -> None:
        self._element = kudu_type(element_type)

    @property
    def element_type(self) -> int:
        """Kudu's number of the element's type."""
        return self._element.type

    def __repr__(self) -> str:
        return f"ArrayTypeDescriptor(element_type={self._element.name})"


class NestedTypeDescriptor:
    """A type that is not a scalar: an array."""

    def __init__(self, array_descriptor: ArrayTypeDescriptor) -> None:
        if not isinstance(array_descriptor, ArrayTypeDescriptor):
            raise TypeError(f"Expected ArrayTypeDescriptor, got {type(array_descriptor)}")
        self.array = array_descriptor

    def is_array(self) -> bool:
        """Whether it is an array: always."""
        return True

    def __repr__(self) -> str:
        return "NestedTypeDescriptor(type=array)"


def array_type(element_type: object) -> NestedTypeDescriptor:
    """Return the type of arrays of a scalar type, for `ColumnSpec.nested_type`."""
    return NestedTypeDescriptor(ArrayTypeDescriptor(element_type))


# -- rows


@in_kudu_terms
class PartialRow(EngineRow):
    """Cells by column name or number; a bound, or what `Schema.new_row` returns."""

    __slots__ = ()

    def __setitem__(self, key: str | int, value: Any) -> None:
        """Set a cell. Raises KeyError, IndexError, TypeError, OverflowError, KuduBadStatus."""
        super().__setitem__(key, cell_of(column_at(self._columns, key), value))

    def set_field(self, key: str, value: Any) -> None:
        """Set the cell of the named column."""
        self[key] = value

    def set_loc(self, i: int, value: Any) -> None:
        """Set the cell of column number `i`."""
        self[i] = value


# -- columns and schemas


class ColumnTypeAttributes:
    """Precision, scale and length of a column; 0 where its type has none."""

    def __init__(self, column_type: ColumnType) -> None:
        column_type = column_type.element or column_type
        self.precision = column_type.precision or 0
        self.scale = column_type.scale or 0
        self.length = column_type.length or 0

    def __repr__(self) -> str:
        return (
            f"ColumnTypeAttributes(precision={self.precision}, scale={self.scale},"
            f" length={self.length})"
        )


class ColumnSchema:
    """One column of a Schema."""

    def __init__(self, column: Column) -> None:
        self.column = column  # the engine's

    @property
    def name(self) -> str:
        """The column's name."""
        return self.column.name

    @property
    def type(self) -> KuduType:
        """The kind of its values; see also `type_attributes`."""
        return _type_named(self.column.type.name)

    @property
    def nullable(self) -> bool:
        """Whether cells may be null."""
        return self.column.nullable

    @property
    def mutable(self) -> bool:
        """Whether cells may be updated."""
        return self.column.mutable

    @property
    def type_attributes(self) -> ColumnTypeAttributes:
        """Precision, scale and length; those of the elements of an array."""
        return ColumnTypeAttributes(self.column.type)

    @property
    def comment(self) -> str:
        """The column's comment, empty if it has none."""
        return self.column.comment

    def equals(self, other: object) -> bool:
        """Whether `other` is a column like this."""
        return isinstance(other, ColumnSchema) and self.column.equals(other.column)

    def type_to_string(self) -> str:
        """Return type and nullability: `DECIMAL(8, 2) 1D-ARRAY NOT NULL`."""
        element = self.column.type.element
        text = str(element or self.column.type).upper() + (" 1D-ARRAY" if element else "")
        return f"{text} {'NULLABLE' if self.nullable else 'NOT NULL'}"

    def __repr__(self) -> str:
        return f"ColumnSchema(name={self.name}, type={self.type.name}, nullable={self.nullable})"


class Schema:
    """The columns of a table, or of the rows of a scan; made by `SchemaBuilder.build`.

    `misfits` are texts on encodings that their columns' types do not have.
    """

    def __init__(
        self, columns: EngineSchema | Sequence[Column], misfits: Sequence[str] = ()
    ) -> None:
        is_table = isinstance(columns, EngineSchema)
        self.engine_schema = columns if isinstance(columns, EngineSchema) else None
        self._columns = tuple(columns)
        self._key_count = columns.key_count if isinstance(columns, EngineSchema) else 0
        self.misfits = tuple(misfits)
        assert is_table or not misfits

    @property
    def names(self) -> list[str]:
        """The columns' names, in order."""
        return [column.name for column in self._columns]

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[ColumnSchema]:
        return map(ColumnSchema, self._columns)

    def __getitem__(self, key: str | int) -> ColumnSchema:
        """Return a column by name or number, from the end if it is negative."""
        if isinstance(key, str):
            if key not in self.names:
                raise KuduColumnNotFound(f"{key}; the columns are {', '.join(self.names)}")
            key = self.names.index(key)
        return self.at(key + len(self) if key < 0 else key)

    def at(self, i: int) -> ColumnSchema:
        """Return a column by number."""
        if not 0 <= i < len(self):
            raise KuduColumnNotFound(f"Column index {i} is not in range")
        return ColumnSchema(self._columns[i])

    def equals(self, other: Schema) -> bool:
        """Whether `other` has the same columns and the same key."""
        if not isinstance(other, Schema):
            raise TypeError(f"expected a Schema, got {type(other).__name__}")
        pairs = zip(self, other, strict=False)
        return (self._key_count, len(self)) == (other._key_count, len(other)) and all(
            mine.equals(column) for mine, column in pairs
        )

    def new_row(self, record: Any = None) -> PartialRow:
        """Return a row with the cells of `record` set: a tuple, a list, or a dict."""
        return PartialRow(self._columns, record or None)

    def primary_key_indices(self) -> list[int]:
        """Return the positions of the key columns."""
        return list(range(self._key_count))

    def primary_keys(self) -> list[str]:
        """Return the names of the key columns."""
        return self.names[: self._key_count]

    @staticmethod
    def get_auto_incrementing_column_name() -> str:
        """Return the name of the last key column of a key that is not unique."""
        return AUTO_INCREMENTING_COLUMN

    def __repr__(self) -> str:
        width = 2 + max(map(len, self.names), default=0)
        lines = [f"  {column.name:{width}}{column.type_to_string()}" for column in self]
        lines.append(f"  PRIMARY KEY ({', '.join(self.primary_keys())})")
        return "kudu.Schema {\n" + "\n".join(lines) + "\n}"


# -- building


@in_kudu_terms
class ColumnSpec(engine.ColumnSpec):
    """One column that is being described or altered; every method returns the spec."""

    def __init__(self, name: str) -> None:
        super().__init__(name, {})
        self.is_primary_key = False
        self.is_unique = True
        self._kind: KuduType | None = None
        self._is_array = False
        self.misfit = ""

    def type(self, type_: object) -> ColumnSpec:
        """Set the column's type: a KuduType, its name, or its number."""
        self._kind = kudu_type(type_)
        self.options["type"] = self._kind.name
        return self

    def nested_type(self, type_descriptor: NestedTypeDescriptor) -> ColumnSpec:
        """Make the column one of arrays; `precision`, `scale` and `length` are of the elements."""
        if not isinstance(type_descriptor, NestedTypeDescriptor):
            raise TypeError(f"Expected NestedTypeDescriptor, got {type(type_descriptor)}")
        self._is_array = True
        return self.type(type_descriptor.array.element_type)

    def primary_key(self) -> ColumnSpec:
        """Make the column the whole primary key."""
        self.is_primary_key = self.is_unique = True
        self.options["nullable"] = False
        return self

    def non_unique_primary_key(self) -> ColumnSpec:
        """Make the column the whole primary key, of which several rows may have the same value.

        The column `auto_incrementing_id` follows it in the key: the engine numbers new rows of each
        tablet from 1, and an insert leaves it out. The last call of this and `primary_key` counts.
        """
        self.primary_key().is_unique = False
        return self

    def block_size(self, block_size: int) -> ColumnSpec:
        """Do nothing: pages of base data have one size for all columns."""
        return self

    def default(self, value: Any) -> ColumnSpec:
        """Set the default; the type must be known."""
        if self._kind is None:
            raise ValueError("You must set the Column type before setting the default value.")
        self.options["default"] = value
        return self

    def compression(self, compression: str | int | None) -> ColumnSpec:
        """Set how pages are compressed, by name or COMPRESSION_ constant; None is not at all."""
        given = COMPRESSION_NONE if compression is None else compression
        self.options["compression"] = choice(given, "compression type", _COMPRESSIONS)
        return self

    def encoding(self, encoding: str | int) -> ColumnSpec:
        """Set how values are laid out, by name or ENCODING_ constant."""
        self.options["encoding"] = choice(encoding, "encoding type", _ENCODINGS)
        return self

    def build(self) -> Column:
        """Return the new column. Raises KuduInvalidArgument, KuduNotSupported."""
        if self.options.get("rename") is not None:
            raise KuduNotSupported(f"cannot rename a column during CreateTable: {self.name}")
        if self.options.get("remove_default"):
            raise KuduNotSupported(f"cannot remove default during CreateTable: {self.name}")
        if self._kind is None:
            raise KuduInvalidArgument(f"no type provided for column: {self.name}")
        for problem in self._problems(self._kind):
            raise KuduInvalidArgument(f"{problem}: {self.name}")
        plain = engine.ColumnSpec(self.name, dict(self.options))
        self.misfit = ""
        column_type = engine.described_type(self.name, self.options)
        if self._is_array:
            column_type = ColumnType("array", element=column_type)
            plain.options = {**self.options, "type": column_type}
            for parameter in ("precision", "scale", "length"):
                plain.options.pop(parameter, None)
        encoding = self.options.get("encoding", "auto")
        if encoding not in encodings_of(column_type):
            self.misfit = (
                f"invalid encoding for column '{self.name}': {encoding} on {column_type};"
                f" possible: {', '.join(encodings_of(column_type))}"
            )
            plain.options["encoding"] = "auto"
        if (default := self.options.get("default")) is not None:
            plain.options["default"] = value_of(column_type, default)
        return plain.build()

    def _problems(self, kind: KuduType) -> Iterator[str]:
        """Yield what is wrong with precision, scale and length, in Kudu's order."""
        said = {name: self.options.get(name) for name in ("precision", "scale", "length")}
        precision, scale, length = said.values()
        shown = "NESTED" if self._is_array else kind.name.upper()
        applicable = {"decimal": ("precision", "scale"), "varchar": ("length",)}.get(kind.name, ())
        if kind is decimal:
            if precision is None:
                yield "no precision provided for DECIMAL column"
            elif not 1 <= precision <= DECIMAL_PRECISION_MAX:
                yield f"precision must be between 1 and {DECIMAL_PRECISION_MAX}"
            elif (scale or 0) < 0:
                yield "scale is less than the minimum value of 0"
            elif (scale or 0) > precision:
                yield f"scale is greater than the precision value of {precision}"
        if kind is varchar:
            if length is None:
                yield "no length provided for VARCHAR column"
            elif not 1 <= length <= VARCHAR_LENGTH_MAX:
                yield f"length must be between 1 and {VARCHAR_LENGTH_MAX}"
        for name, value in said.items():
            if value is not None and name not in applicable:
                yield f"{name} is not applicable to {shown} column"


class TypeParameters(TypedDict, total=False):
    """Parameters of a column's type that are given beside it.

    `precision` and `scale` are of decimal, `length` is of varchar.
    """

    precision: int | None
    scale: int | None
    length: int | None


@in_kudu_terms
class SchemaBuilder:
    """Collects columns and the primary key of a new table."""

    def __init__(self) -> None:
        self._specs: list[ColumnSpec] = []
        self._key_names: list[str] | None = None
        self._is_unique = True

    def __repr__(self) -> str:
        columns = ", ".join(map(repr, self._specs))
        return f"<kudulite schema builder: {columns or 'no columns'}; key {', '.join(self._keys)}>"

    @property
    def _keys(self) -> list[str]:
        if self._key_names is not None:
            return self._key_names
        return [spec.name for spec in self._specs if spec.is_primary_key]

    def add_column(
        self,
        name: str,
        type_: object = None,
        nullable: bool | None = None,
        compression: str | int | None = None,
        encoding: str | int | None = None,
        primary_key: bool = False,
        non_unique_primary_key: bool = False,
        block_size: int | None = None,
        default: Any = None,
        *,
        comment: str | None = None,
        mutable: bool | None = None,
        **parameters: Unpack[TypeParameters],
    ) -> ColumnSpec:
        """Add a column, nullable and mutable unless said otherwise; returns its spec to refine."""
        spec = column_spec(name, type_, nullable, compression, encoding, default)
        spec.options |= {
            "comment": comment,
            "mutable": mutable,
            **_checked_parameters(parameters),
        }
        if primary_key:
            spec.primary_key()
        if non_unique_primary_key:
            spec.non_unique_primary_key()
        self._specs.append(spec)
        return spec

    def copy_column(self, colschema: ColumnSchema) -> ColumnSpec:
        """Add a column with the name, type and nullability of another one."""
        spec = column_spec(colschema.name, None, colschema.nullable)
        column_type = colschema.column.type
        element = column_type.element or column_type
        if column_type.is_array:
            spec.nested_type(array_type(element))
        else:
            spec.type(element)
        for parameter in ("precision", "scale", "length"):
            spec.options[parameter] = getattr(element, parameter)
        self._specs.append(spec)
        return spec

    def set_primary_keys(self, key_names: Sequence[str]) -> SchemaBuilder:
        """Set the key columns: the first columns of the schema, in their order, and NOT NULL."""
        self._key_names, self._is_unique = list(key_names), True
        return self

    def set_non_unique_primary_keys(self, key_names: Sequence[str]) -> SchemaBuilder:
        """Set the key columns as `set_primary_keys`, of a key that several rows may have.

        See `ColumnSpec.non_unique_primary_key`.
        """
        self._key_names, self._is_unique = list(key_names), False
        return self

    def build(self) -> Schema:
        """Return the schema. Raises KuduInvalidArgument, KuduNotSupported."""
        columns = [spec.build() for spec in self._specs]
        self._check_names()
        for column in columns:
            if column.nullable and column.name in self._keys:
                raise KuduInvalidArgument(f"Nullable key columns are not supported: {column.name}")
        is_unique = self._is_unique
        if self._key_names is None:
            is_unique = all(spec.is_unique for spec in self._specs)
        built = new_schema.schema(columns, self._keys, is_unique=is_unique)
        return Schema(built, [spec.misfit for spec in self._specs if spec.misfit])

    def _check_names(self) -> None:
        """Raise what Kudu's client raises for a key that it cannot build."""
        names = [spec.name for spec in self._specs]
        marked = [spec.name for spec in self._specs if spec.is_primary_key]
        if AUTO_INCREMENTING_COLUMN in names:
            raise KuduInvalidArgument(f"{AUTO_INCREMENTING_COLUMN} is a reserved column name")
        if self._key_names is None:
            if len(marked) > 1:
                listed = ", ".join(marked[:2])
                raise KuduInvalidArgument(f"multiple columns specified for primary key: {listed}")
            if not marked:
                raise KuduInvalidArgument("no primary key or non-unique primary key specified")
            if names[0] != marked[0]:
                raise KuduInvalidArgument("primary key column must be the first column")
            return
        if marked:
            setter = "SetPrimaryKey" if self._is_unique else "SetNonUniquePrimaryKey"
            raise KuduInvalidArgument(
                f"primary key specified by both {setter}() and on a specific column: {marked[0]}"
            )
        for at, name in enumerate(self._key_names):
            if name not in names:
                raise KuduInvalidArgument(f"primary key column not defined: {name}")
            if names.index(name) != at:
                raise KuduInvalidArgument(
                    f"primary key columns must be listed first in the schema: {name}"
                )


def _checked_parameters(given: TypeParameters) -> TypeParameters:
    """Return parameters of a type. Raises TypeError as Python does for a name that is not known."""
    for name in given:
        if name not in TypeParameters.__annotations__:
            raise TypeError(f"add_column() got an unexpected keyword argument {name!r}")
    return given


def column_spec(
    name: str,
    type_: object = None,
    nullable: bool | None = None,
    compression: str | int | None = None,
    encoding: str | int | None = None,
    default: Any = None,
) -> ColumnSpec:
    """Return the spec of a column with what is given set."""
    spec = ColumnSpec(name)
    if type_ is not None:
        spec.type(type_)
    if nullable is not None:
        spec.nullable(nullable)
    if compression is not None:
        spec.compression(compression)
    if encoding is not None:
        spec.encoding(encoding)
    if default is not None:
        spec.default(default)
    return spec
