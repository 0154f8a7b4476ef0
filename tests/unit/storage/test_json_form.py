"""JSON forms: every kind of field there and back, wrong structures refused, unknown types too."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest

from kudulite.errors import CorruptionError
from kudulite.storage.checked_json import decode_checked_json
from kudulite.storage.json_form import WRONG_STRUCTURE, JsonForm, Stored
from kudulite.storage.storage import FileRef


@dataclass(frozen=True)
class Place(JsonForm):
    """A nested object."""

    number: int
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Everything(JsonForm):
    """A field of every kind."""

    id: Annotated[str, Stored(name="id")]
    text: str
    is_good: bool
    key: bytes
    upper: bytes | None
    at: Annotated[Place, Stored(inline=True)]
    file: Annotated[FileRef | None, Stored("ref")]
    places: tuple[Place, ...]
    by_id: Mapping[int, int]
    by_name: Mapping[str, int]
    tags: Annotated[Mapping[str, int], Stored(may_be_absent=True)] = field(default_factory=dict)
    late: Annotated[tuple[Place, ...], Stored(may_be_absent=True)] = ()
    memory: Annotated[int, Stored(is_kept=False)] = 7


VALUE = Everything(
    "i", "t", True, b"\0\xff", None, Place(1, (2,)), None, (Place(3),), {4: 5}, {"a": 6}, memory=8
)
FORM = {
    "id": "i",
    "text": "t",
    "is_good": True,
    "key": "00ff",
    "upper": None,
    "number": 1,
    "parts": [2],
    "ref": None,
    "places": [{"number": 3, "parts": []}],
    "by_id": {"4": 5},
    "by_name": {"a": 6},
    "tags": {},
    "late": [],
}


def test_every_kind_of_field_has_its_form():
    """In the order of the fields; a field that is not kept is left out."""
    assert VALUE.to_json() == FORM
    assert list(VALUE.to_json()) == list(FORM)


def test_a_form_is_read_back():
    """A field that is not kept has its default, a given one is not read."""
    assert Everything.from_json(FORM, memory=8) == VALUE
    assert Everything.from_json(FORM).memory == 7
    assert Everything.from_json({**FORM, "text": 5, "unknown": 1}, text="t", memory=8) == VALUE


def test_only_fields_that_say_so_may_be_absent():
    """Those have their defaults; no other default counts."""
    small = {key: FORM[key] for key in FORM if key not in ("tags", "late")}
    assert Everything.from_json(small, memory=8) == VALUE
    for key in small:
        with pytest.raises(KeyError, match=key):
            Everything.from_json({k: v for k, v in small.items() if k != key})


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../a"},
        {"id": None},
        {"key": "0"},
        {"key": None},
        {"number": "1"},
        {"number": 1.0},
        {"parts": 5},
        {"parts": ["a"]},
        {"ref": []},
        {"ref": {"name": "a"}},
        {"places": [None]},
        {"by_id": {"x": 1}},
        {"by_id": 5},
        {"by_name": 5},
    ],
)
def test_a_wrong_structure_is_refused(change: dict[str, Any]):
    """With one of the errors that a decoder of metadata expects."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        Everything.from_json({**FORM, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"text": 5},
        {"text": None},
        {"text": "\ud800"},
        {"is_good": 1},
        {"number": True},
        {"number": -1},
        {"number": 1 << 64},
        {"parts": [-1]},
        {"parts": [1, True]},
        {"parts": "12"},
        {"places": {}},
        {"places": "ab"},
        {"by_id": {"4": -1}},
        {"by_name": {"a": "x"}},
        {"by_name": [["a", 1]]},
        {"tags": {"a": 1 << 64}},
    ],
)
def test_values_have_the_type_of_their_field(change: dict[str, Any]):
    """Numbers are within 0 to 2^64 - 1, and texts have a UTF-8 form."""
    assert Everything.from_json(FORM).at.number == 1
    with pytest.raises(WRONG_STRUCTURE):
        Everything.from_json({**FORM, **change})


def test_a_signed_field_takes_numbers_below_0():
    """Down to -2^63."""

    @dataclass(frozen=True)
    class Signed(JsonForm):
        value: Annotated[int, Stored(is_signed=True)]

    assert Signed.from_json({"value": -(1 << 63)}).value == -(1 << 63)
    with pytest.raises(ValueError, match="expected an integer from -9223372036854775808"):
        Signed.from_json({"value": 1 << 63})


def test_deep_nesting_is_damage():
    """The JSON parser has a limit of its own."""
    line = b"[" * 100_000
    content = line + b'\n{"crc32":%d}\n' % zlib.crc32(line)
    with pytest.raises(CorruptionError, match=r"x\.json: not a manifest"):
        decode_checked_json(content, "x.json", "a manifest")


def test_a_type_without_a_form_is_refused_when_the_class_is_first_used():
    """Whatever its values are."""

    @dataclass(frozen=True)
    class Unknown(JsonForm):
        value: float | None = None

    with pytest.raises(TypeError, match="float.* has no JSON form"):
        Unknown().to_json()
