"""doctor of an object store: each promise that is broken is found, and nothing is left behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore

from kudulite.errors import StorageError
from kudulite.storage.object_storage import ObjectStorage
from kudulite.tools.doctor import Diagnosis
from kudulite.tools.doctor_store import READ_CHECKS, WRITE_CHECKS, diagnose_store

ROOT = Path("memory:/bucket")
TABLES = ROOT / "tables"
NAMES = [*READ_CHECKS, "put", *WRITE_CHECKS, "not seen"]

# Takes the place of a verb; it gets the storage, the verb as it was, and its arguments.
Change = Callable[..., Any]


class ChangedStorage(ObjectStorage):
    """A store in memory, of which some verbs do something else."""

    def __init__(self, **changes: Change) -> None:
        super().__init__(MemoryStore(), ROOT)
        self.calls: list[str] = []
        for verb, change in changes.items():
            setattr(self, verb, self._changed(getattr(self, verb), change))

    def _changed(self, own: Callable[..., Any], change: Change) -> Callable[..., Any]:
        return lambda *arguments: change(self, own, *arguments)

    def left(self) -> dict[Path, list[str]]:
        """The objects in the store."""
        return {folder: names for folder, names in self.names_below(ROOT).items() if names}


def is_not_permitted(_storage: ObjectStorage, _own: Any, path: Path, *_: Any) -> Any:
    """A verb that the credentials do not permit."""
    raise StorageError(errno.EACCES, f"cannot do this to {path}: 403 Forbidden: AccessDenied")


def wrong(found: Diagnosis) -> set[str]:
    """The names of the tests that found something wrong."""
    return {each.name for each in found.findings if not each.is_ok and not each.is_warning}


def detail(found: Diagnosis, name: str) -> str:
    """What a test said."""
    (text,) = (each.detail for each in found.findings if each.name == name)
    return text


def test_a_store_that_keeps_its_promises_is_safe_and_left_as_it_was():
    """Each test says what it found."""
    storage = ChangedStorage()
    storage.put_if_absent(TABLES / "t" / "x", b"x")
    found = diagnose_store(storage, TABLES)
    assert [each.name for each in found.findings] == NAMES
    assert found.is_safe and found.verdict == "safe for tables"
    assert storage.left() == {TABLES / "t": ["x"]}


def replaced(storage: ObjectStorage, _own: Any, path: Path, content: bytes) -> bool:
    """A put without its condition."""
    storage.put_hint(path, content)
    return True


def facts_of(**changes: Any) -> Change:
    """Facts of objects that are there, with changes."""

    def change(_storage: ObjectStorage, own: Any, path: Path) -> Any:
        known = own(path)
        if known is None:
            return None
        found = dict(known)
        if "seconds" in changes:
            found["last_modified"] += timedelta(seconds=changes["seconds"])
        return found | {name: value for name, value in changes.items() if name in found}

    return change


def without_last_byte(_storage: ObjectStorage, own: Any, *arguments: Any) -> Any:
    """A read that loses the end of what it read."""
    length, parts = own(*arguments)
    return length, [part[:-1] for part in parts]


def first_content(storage: Any, own: Any, path: Path) -> bytes:
    """A read that shows what an object had when it was first read."""
    kept = storage.__dict__.setdefault("kept", {})
    return kept.setdefault(path, own(path))


BROKEN: dict[str, tuple[dict[str, Change], set[str]]] = {
    "puts replace": ({"put_if_absent": replaced}, {"conditional put", "puts at once"}),
    "puts are refused": ({"put_if_absent": lambda *_: False}, {"put"}),
    "reads are old": ({"read": first_content}, {"second put"}),
    "lists are old": ({"entries": lambda *_: []}, {"lists"}),
    "ranges are short": ({"read_ranges": without_last_byte}, {"ranges"}),
    "parts are lost": (
        {"put_parts": lambda storage, own, path, file: storage.put_hint(path, file.read(5 << 20))},
        {"parts"},
    ),
    "deletes are none": ({"delete": lambda *_: None}, {"delete", "lists"}),
    "deletes of several are none": ({"delete_below": lambda *_: None}, {"delete"}),
    "what is missing is there": (
        {"read": lambda _, own, path: b"" if path.name == "missing" else own(path)},
        {"get"},
    ),
    "what is missing has facts": (
        {"facts": lambda _, own, path: {} if path.name == "missing" else own(path)},
        {"get"},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_found(name: str):
    """And only that one."""
    changes, expected = BROKEN[name]
    found = diagnose_store(ChangedStorage(**changes), TABLES)
    assert wrong(found) == expected
    assert found.verdict.startswith("NOT SAFE for tables: ")


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        (facts_of(seconds=3600), "clock", "3,600 s ahead of this machine's"),
        (facts_of(seconds=-3600), "clock", "3,600 s behind this machine's"),
        (facts_of(version="v1"), "versions", "deleted and purged rows stay there"),
    ],
)
def test_what_is_worth_knowing_is_no_reason_against_tables(change: Change, name: str, text: str):
    """A clock that is wrong, a bucket that keeps what is deleted."""
    found = diagnose_store(ChangedStorage(facts=change), TABLES)
    assert found.is_safe and text in detail(found, name) and text in found.verdict


def test_credentials_of_a_reader_get_a_report():
    """It says what is permitted, and that nothing was tested of what is not."""
    writes = ("put_if_absent", "put_hint", "put_parts", "delete", "delete_below")
    storage = ChangedStorage(**dict.fromkeys(writes, is_not_permitted))
    found = diagnose_store(storage, TABLES)
    assert wrong(found) == {"put"} and not found.is_safe
    assert [each.name for each in found.findings] == [*READ_CHECKS, "put", "writes", "not seen"]
    assert "AccessDenied; these credentials are good for a reader at most" in detail(found, "put")
    assert storage.left() == {}


def test_credentials_that_may_not_list_are_told_what_is_missing():
    """S3 answers 403 then where an object is not there."""

    def read(_storage: ObjectStorage, own: Any, path: Path) -> Any:
        if path.name == "missing":
            return is_not_permitted(_storage, own, path)
        return own(path)

    storage = ChangedStorage(is_folder=is_not_permitted, read=read)
    found = diagnose_store(storage, TABLES)
    assert wrong(found) == {"list", "get"}
    assert "ListBucket, whose condition s3:prefix" in detail(found, "list")
    assert "403 in place of 404" in detail(found, "get")
    assert storage.left() == {}


def test_objects_that_may_not_be_deleted_are_named():
    """They stay, so the report says so."""
    found = diagnose_store(ChangedStorage(delete=is_not_permitted), TABLES)
    assert wrong(found) == {"delete", "lists", "clean up"}
    assert "DeleteObject" in detail(found, "delete")
    assert ".kudulite-doctor-" in detail(found, "clean up")


@pytest.mark.parametrize(
    ("number", "text"),
    [(errno.ENXIO, "no such bucket"), (errno.EIO, "no answer"), (errno.EACCES, "ExpiredToken")],
)
def test_a_store_that_is_not_there_or_a_wrong_key_is_one_error(number: int, text: str):
    """Not a report of which every line says so."""

    def fails(*_: Any) -> Any:
        raise StorageError(number, text)

    with pytest.raises(StorageError, match=text):
        diagnose_store(ChangedStorage(is_folder=fails), TABLES)


@pytest.mark.parametrize("verb", ["put_if_absent", "put_hint", "put_parts", "read_ranges"])
def test_nothing_is_left_by_an_interrupt(verb: str):
    """Wherever it comes."""
    count = 0

    def interrupted(_storage: ObjectStorage, own: Any, *arguments: Any) -> Any:
        nonlocal count
        done = own(*arguments)
        count += 1
        if count == (1 if verb in ("put_parts", "read_ranges") else 3):
            raise KeyboardInterrupt
        return done

    storage = ChangedStorage(**{verb: interrupted})
    with pytest.raises(KeyboardInterrupt):
        diagnose_store(storage, TABLES)
    assert storage.left() == {}
