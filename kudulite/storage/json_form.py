"""JSON forms of metadata: frozen dataclasses to and from what `json` writes and reads.

    class BaseFileMeta(JsonForm):
        ref: Annotated[FileRef, Stored("file")]       {"file": {"name": …, "length": …, "crc32": …},
        column_ids: tuple[int, ...]                     "column_ids": [0, 1]}

The object has one member per field, in the order of the fields. Bytes are hexadecimal digits,
tuples are lists, keys of mappings are text, and a class with `to_json` and `from_json` has its own
form. `Stored` renames a member, or says how it differs.

Objects never change, so `json_text` is made once. A field that `is_text` is written as the text of
its objects: a new version of a table encodes the tablets that changed, and copies the others.

The two functions of a class are compiled once from its fields, as `dataclasses` does it: a
superblock may have thousands of rowsets, and a loop over the fields of each takes a third longer.

**Invariants**: (1) a type without a form is a TypeError when its class is first used, not when a
value is; (2) each value that is read has the type of its field, and an integer lies in
0 .. 2^64 - 1 (a field that `is_signed`: -2^63 .. 2^63 - 1); (3) anything else raises one of
`WRONG_STRUCTURE`, which the decoder of the file turns into a CorruptionError of that file;
(4) unknown members are ignored.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cache, cached_property
from typing import Annotated, Any, NamedTuple, Self, cast

from kudulite.errors import CorruptionError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_NAME_SHOWN_MAX = 60
_UNSIGNED, _SIGNED = range(1 << 64), range(-(1 << 63), 1 << 63)

# Raised while a value of the wrong structure is decoded; deep nesting is a RecursionError.
WRONG_STRUCTURE = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)

Converter = Callable[[Any], Any]


def checked_name(value: Any, field: str) -> str:
    """Return `value`, which metadata gives as the name or id `field`, if it is one path component.

    It has 1 to 200 ASCII letters, digits, `.`, `_` and `-`, and no dot at the beginning. Raises
    ValueError, which the decoder of the metadata file turns into a CorruptionError of that file.
    """
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(
        f"{field} {_shown(value)}, expected 1 to 200 ASCII letters, digits, dots, underscores and"
        " hyphens, no dot at the beginning"
    )


def _shown(value: Any) -> str:
    found = ascii(value)
    if len(found) <= _NAME_SHOWN_MAX:
        return found
    return f"{found[:_NAME_SHOWN_MAX]}... ({len(found)} characters)"


@contextmanager
def readable(source: str, what: str) -> Iterator[None]:
    """Raise the errors of a wrong structure as CorruptionError: the file is not `what`."""
    try:
        yield
    except CorruptionError as error:
        if str(error).startswith(source):
            raise
        raise type(error)(f"{source}: {error}") from error
    except WRONG_STRUCTURE as error:
        raise CorruptionError(f"{source}: not {what}: {error!r}") from error


@dataclass(frozen=True)
class Stored:
    """How a field is stored: under the name `key`, or, `inline`, as members of this object.

    `name` says which name or id the text is; it must then be a path component. `may_be_absent` is
    for members that older files do not have: the field gets its default. A member that
    `may_be_none` is stored only if it is not None. A field that is not `is_kept` is never stored.
    Integers of a field that `is_signed` may be below 0. A field that `is_text` is written as
    `JsonText`.
    """

    key: str | None = None
    name: str | None = None
    inline: bool = False
    may_be_absent: bool = False
    may_be_none: bool = False
    is_kept: bool = True
    is_signed: bool = False
    is_text: bool = False


class JsonText(str):
    """A value as JSON text, which `encode_checked_json` takes as it is."""

    __slots__ = ()

    @classmethod
    def of(cls, form: Any) -> Self:
        """Return the text of a JSON form."""
        return cls(json.dumps(form, separators=(",", ":")))


class JsonForm:
    """Base of a dataclass that has a JSON form."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        form: dict[str, Any] = _writer(cast(Any, type(self)))(self)
        return form

    @cached_property
    def json_text(self) -> JsonText:
        """The JSON form as text."""
        return JsonText.of(self.to_json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any], **given: Any) -> Self:
        """Build an object from its form; fields that are `given` are not read from it.

        Raises one of `WRONG_STRUCTURE`.
        """
        built: Self = _reader(cast(Any, cls), *given)(value, **given)
        return built


class _Member(NamedTuple):
    """One stored field of a class; no converter means: as it is."""

    field: Field[Any]
    stored: Stored
    write: Converter | None
    read: Converter | None

    @property
    def key(self) -> str:
        return self.stored.key or self.field.name


def _members(owner: type) -> Iterator[_Member]:
    hints = typing.get_type_hints(owner, include_extras=True)
    for field in fields(cast(Any, owner)):
        hint, stored = hints[field.name], Stored()
        if typing.get_origin(hint) is Annotated:
            hint, stored = typing.get_args(hint)
        if stored.is_kept:
            yield _Member(field, stored, *_converters(hint, stored))


@cache
def _writer(owner: type) -> Converter:
    """Return a function of an object: `lambda value: {"id": value.id, **w1(value.place), …}`."""
    scope: dict[str, Any] = {}
    cells = []
    for number, member in enumerate(_members(owner)):
        cell = f"value.{member.field.name}"
        if member.write is not None:
            scope[f"w{number}"] = member.write
            cell = f"w{number}({cell})"
        if member.stored.may_be_none:
            form = f"{{{member.key!r}: {cell}}}"
            cells.append(f"**({{}} if value.{member.field.name} is None else {form})")
            continue
        cells.append(f"**{cell}" if member.stored.inline else f"{member.key!r}: {cell}")
    return cast(Converter, eval(f"lambda value: {{{', '.join(cells)}}}", scope))


@cache
def _reader(owner: type, *given: str) -> Callable[..., Any]:
    """Return a function of a form: `lambda form, given: owner(id=form["id"], …, given=given)`."""
    scope: dict[str, Any] = {"owner": owner}
    cells = []
    for number, member in enumerate(_members(owner)):
        if member.field.name in given:
            continue
        cell = "form" if member.stored.inline else f"form[{member.key!r}]"
        if member.stored.may_be_absent or member.stored.may_be_none:
            scope[f"d{number}"] = _default_form(member)
            cell = f"form.get({member.key!r}, d{number})"
        if member.read is not None:
            scope[f"r{number}"] = member.read
            cell = f"r{number}({cell})"
        cells.append(f"{member.field.name}={cell}")
    cells += [f"{name}={name}" for name in given]
    return cast(
        Converter, eval(f"lambda {', '.join(('form', *given))}: owner({', '.join(cells)})", scope)
    )


def _default_form(member: _Member) -> Any:
    default = member.field.default
    if default is MISSING:
        default = cast(Any, member.field.default_factory)()
    return default if member.write is None else member.write(default)


def _converters(hint: Any, stored: Stored) -> tuple[Converter | None, Converter | None]:
    """Return how values of a type are written and read; None is as they are."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if stored.is_text:
        read = _converters(hint, replace(stored, is_text=False))[1]
        return _texts if origin is tuple else _text_of, read
    if origin is types.UnionType and arguments[1] is types.NoneType:
        write, read = _converters(arguments[0], stored)
        return write and _unless_none(write), read and _unless_none(read)
    if origin is tuple and arguments == (int, Ellipsis):
        return list, _integers(stored)
    if origin is tuple and arguments[1] is Ellipsis:
        write, read = _converters(arguments[0], stored)
        return _each(list, write), _of_type(list, _each(tuple, read))
    if origin is Mapping and arguments in ((str, int), (int, int)):
        convert = None if arguments[0] is str else str
        return _with_keys(convert), _of_type(dict, _with_keys(arguments[0], _integers(stored)))
    if hint is str:
        name = stored.name
        return None, _text if name is None else lambda value: checked_name(value, name)
    if hint is bool:
        return None, _of_type(bool, None)
    if isinstance(hint, type) and issubclass(hint, int):
        return None, _integer(stored, hint)
    if hint is bytes:
        return bytes.hex, bytes.fromhex
    if isinstance(hint, type) and issubclass(hint, JsonForm):
        return _writer(cast(Any, hint)), _reader(cast(Any, hint))
    if hasattr(hint, "to_json") and hasattr(hint, "from_json"):
        return hint.to_json, hint.from_json
    raise TypeError(f"{hint} has no JSON form")


def _text_of(value: Any) -> JsonText:
    text: JsonText = value.json_text
    return text


def _texts(values: Iterable[Any]) -> JsonText:
    return JsonText(f"[{','.join([value.json_text for value in values])}]")


def _unless_none(convert: Converter) -> Converter:
    return lambda value: None if value is None else convert(value)


def _each(kind: Callable[[Iterable[Any]], Any], convert: Converter | None) -> Converter:
    return kind if convert is None else lambda values: kind(map(convert, values))


def _of_type(kind: type, convert: Converter | None) -> Converter:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{_shown(value)}, expected a {kind.__name__}")
        return value if convert is None else convert(value)

    return read


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{_shown(value)}, expected a text")
    value.encode()  # half of a surrogate pair has no UTF-8 form
    return value


def _integer(stored: Stored, kind: type[int]) -> Converter:
    known = _SIGNED if stored.is_signed else _UNSIGNED
    first, last = known[0], known[-1]

    def read(value: Any) -> int:
        if type(value) is not int or not first <= value <= last:
            raise ValueError(f"{_shown(value)}, expected an integer from {first} to {last}")
        return value if kind is int else kind(value)

    return read


def _integers(stored: Stored) -> Converter:
    """Return the reader of a list of integers as a tuple; all are compared at once."""
    known = _SIGNED if stored.is_signed else _UNSIGNED
    first, last = known[0], known[-1]

    def read(values: Any) -> Any:
        if set(map(type, values)) - {int} or (
            values and (min(values) < first or max(values) > last)
        ):
            raise ValueError(f"{_shown(values)}, expected integers from {first} to {last}")
        return tuple(values)

    return _of_type(list, read)


def _with_keys(convert: Converter | None, values_of: Converter = tuple) -> Converter:
    """Return the converter of a mapping; `values_of` checks the list of its values."""

    def converted(counts: Mapping[Any, int]) -> dict[Any, int]:
        keys = counts if convert is None else map(convert, counts)
        return dict(zip(keys, values_of(list(counts.values())), strict=True))

    return converted
