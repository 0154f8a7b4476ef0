"""The table folders of a directory of tables in an object store, which has no folders to move.

    <root>/.tables/<number>.json     {"folders_version": 1, "number": n, "folders": {"metrics": id}}
    <root>/.tables/hint              a copy of one of them, near the highest number
    <root>/.tables/<id>/             the objects of one table

The file of the highest number says at which path each table is, and is complete. A change makes the
next number, if it is free; a process that loses the race makes its change of the newer file. So a
move and an exchange of folders are one step, as in a directory.

The first number may be of a directory without tables. One that was removed has `"is_removed": true`
in its newest file. It stays, because entries of tables that were deleted stay for a while, and is
superseded when the directory is made again.

Numbers are removed an hour after they were superseded. As in version_chain.py, number n + 1 counts
if n is still there after its creation, and a walk upwards from n if n is there at its end.

**Threads**: any. `_seen` is replaced, never changed.
"""

from __future__ import annotations

import errno
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from kudulite.errors import CorruptionError, StorageError
from kudulite.storage.checked_json import (
    check_format_version,
    decode_checked_json,
    encode_checked_json,
)
from kudulite.storage.json_form import checked_name, readable
from kudulite.storage.names import HINT_NAME, is_id, is_trash, new_trash_name
from kudulite.storage.storage import Listed, Storage, is_there, read_if_there

FOLDERS_NAME = ".tables"
_FOLDERS_VERSION = 1  # on disk: a change of meaning raises it
_KEPT_SECONDS = 3600.0
_LOOKS_MAX = 1000
# So many are read side by side, because there may be more.
_READ_AT_ONCE = 2
# The place of a folder that no table has.
NO_PLACE = "none"

Folders = Mapping[str, str]


class _Objects(Storage, Protocol):
    """An object storage, which lists the objects of one folder with their ages."""

    def listed(self, folder: Path) -> list[Listed]: ...


class _Seen(NamedTuple):
    number: int
    folders: Folders
    id: str
    is_removed: bool = False


class TableFolders:
    """The folders of the tables in the directory `root`."""

    def __init__(self, storage: _Objects, root: Path) -> None:
        self._storage = storage
        self._folder = root / FOLDERS_NAME
        self.root = root
        self._seen: _Seen | None = None

    def place(self, folder: Path) -> Path:
        """Return where the objects of a table's folder are, a place without any if it is none."""
        return self._folder / self.newest().get(self.key(folder), NO_PLACE)

    def new_place(self) -> Path:
        """Return a place for a new table, which has no folder yet."""
        return self._folder / uuid.uuid4().hex

    def adopt_abandoned(self, age_seconds: float) -> None:
        """Give places that have no folder, and no younger object, one that is trash."""
        found = [place for place in self._storage.entries(self._folder) if is_id(place.name)]
        named = set(self.newest().values())
        for place in found:
            if place.name not in named and all(
                file.age_seconds >= age_seconds for file in self._storage.files_below(place)
            ):
                self.name(self.root / new_trash_name(), place)

    def key(self, folder: Path) -> str:
        """Return the name of a folder below the root."""
        return folder.relative_to(self.root).as_posix()

    def below(self, folder: Path) -> list[str]:
        """Return the names of a table's folder, or of those in a hidden one."""
        return _below(self.newest(), self.key(folder))

    def table_names(self) -> list[str]:
        """Return the names of all tables that are not hidden, sorted."""
        keys = self.newest()
        return sorted(key for key in keys if "/" not in key and not key.startswith("."))

    def name(self, folder: Path, place: Path) -> bool:
        """Give a place the name of a folder; return False where another one has it."""

        def build(names: dict[str, str]) -> None:
            if any(is_trash(key) for key, found in names.items() if found == place.name):
                raise StorageError(
                    errno.ENOENT,
                    f"cannot create {folder}: nothing was done for a day, so the files were"
                    " removed; create it again",
                )
            if names.setdefault(self.key(folder), place.name) != place.name:
                raise _taken(folder)

        try:
            self.change(build)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            return False
        return True

    def move(self, source: Path, target: Path, place: Path | None = None) -> None:
        """Give a folder, or all in a hidden one, a name that no other one has.

        With a `place`, only that table: another one may have got the folder meanwhile.
        """

        def build(names: dict[str, str]) -> None:
            found = _below(names, self.key(source))
            if place is not None and names.get(self.key(source)) != place.name:
                found = []
            if not found:
                raise StorageError(errno.ENOENT, f"cannot rename {source}: it does not exist")
            if _below(names, self.key(target)):
                raise _taken(target)
            for key in found:
                moved = self.key(target) + key.removeprefix(self.key(source))
                names[moved] = names.pop(key)

        self.change(build)

    def exchange(self, one: Path, other: Path) -> None:
        """Let two folders change names."""

        def build(names: dict[str, str]) -> None:
            keys = self.key(one), self.key(other)
            for folder, key in zip((one, other), keys, strict=True):
                if key not in names:
                    raise StorageError(errno.ENOENT, f"cannot exchange {folder}: there is none")
            names[keys[0]], names[keys[1]] = names[keys[1]], names[keys[0]]

        self.change(build)

    def forget(self, keys: Iterable[str]) -> None:
        """Remove the names of tables that were deleted."""

        def build(names: dict[str, str]) -> None:
            for key in keys:
                names.pop(key, None)

        self.change(build)

    def is_removed(self) -> bool:
        """Whether the directory was removed, and not made again."""
        return self._newest().is_removed

    def make(self) -> None:
        """Make the directory, if it is not there: a list without tables."""
        seen = self._newest()
        if seen.number == 0 or seen.is_removed:
            self.change(lambda names: None)

    def remove(self) -> None:
        """Note that the directory was removed. Raises StorageError if it has content."""

        def build(names: dict[str, str]) -> None:
            others = [path for path in self._storage.entries(self.root) if path.name not in names]
            # A directory in it that was removed has objects, too.
            entries = [path.name for path in others if is_there(self._storage, path)]
            if not all(map(is_trash, (*names, *entries))):
                raise StorageError(errno.ENOTEMPTY, f"cannot remove {self.root}: it is not empty")

        self.change(build, is_removed=True)

    def newest(self) -> Folders:
        """Return the identifier of each table's place by its folder."""
        return self._newest().folders

    def _newest(self) -> _Seen:
        for _ in range(_LOOKS_MAX):
            before = self._seen
            if before is None or before.number == 0:
                found = self._found()
            else:
                found = self._read_from(before.number)
                if found[:1] != [before]:  # it was removed, or is another file of its number
                    found = []
            self._seen = found[-1] if found else None
            if 0 < len(found) < _READ_AT_ONCE:
                return found[-1]
        raise CorruptionError(f"{self._folder}: no file is the newest; look at the files in it")

    def _read_from(self, number: int) -> list[_Seen]:
        """Read the files from a number on, side by side, up to the first that is not there."""
        numbers = range(number, number + _READ_AT_ONCE) if number >= 0 else ()
        found = self._storage.side_by_side(self._read, numbers)
        return [each for each in itertools.takewhile(lambda each: each is not None, found) if each]

    def _found(self) -> list[_Seen]:
        """Read the newest file, of which nothing is known: mostly the hint is a copy of it."""

        def read(is_hint: bool) -> tuple[_Seen | None, int]:
            return (self._hint(), 0) if is_hint else (None, self._highest())

        (hint, _), (_, newest) = self._storage.side_by_side(read, [True, False])
        if hint is not None and hint.number > newest:  # perhaps it came in between
            newest = self._highest()
            if hint.number > newest:
                raise CorruptionError(
                    f"{self._folder}: the newest file has number {newest}, but number"
                    f" {hint.number} was there; put {self._path(hint.number).name} back, of which"
                    f" {HINT_NAME!r} is a copy, or delete that if the tables were removed by hand"
                )
        if hint is not None and hint.number == newest:
            return [hint]
        return self._read_from(newest)

    def _hint(self) -> _Seen | None:
        """Return the copy in the hint, None without one."""
        path = self._folder / HINT_NAME
        content = read_if_there(self._storage, path)
        try:
            return None if content is None else _decoded(content, str(path))
        except CorruptionError:
            return None

    def _highest(self) -> int:
        """Return the highest number, 0 if there is none."""
        names = [path.stem for path in self._storage.entries(self._folder)]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020d}.json"

    def _read(self, number: int) -> _Seen | None:
        """Read the file of a number, None where there is none; 0 has no file and no folders."""
        if number == 0:
            return _Seen(0, {}, "")
        path = self._path(number)
        content = read_if_there(self._storage, path)
        if content is None:
            return None
        found = _decoded(content, str(path))
        if found.number != number:
            raise CorruptionError(
                f"{path}: a list of table folders of number {found.number}, expected {number}"
            )
        return found

    def change(self, build: Callable[[dict[str, str]], None], *, is_removed: bool = False) -> None:
        """Make the next number: `build` changes a copy of the newest, perhaps several times.

        Raises StorageError, and what `build` raises; nothing is changed then.
        """
        for _ in range(_LOOKS_MAX):
            seen = self._newest()
            folders = dict(seen.folders)
            build(folders)
            number = seen.number + 1
            body: dict[str, Any] = {
                "folders_version": _FOLDERS_VERSION,
                "number": number,
                "id": uuid.uuid4().hex,  # so that a process knows its own file again
                "folders": folders,
            } | ({"is_removed": True} if is_removed else {})
            content = encode_checked_json(body)
            if not self._storage.put_if_absent(self._path(number), content):
                continue
            if self._read(seen.number) != seen:
                self._storage.delete(self._path(number))
                self._seen = None
                continue
            self._seen = _Seen(number, folders, body["id"], is_removed)
            with suppress(StorageError):  # without it the folder is listed
                self._storage.put_hint(self._folder / HINT_NAME, content)
            self._remove_superseded()
            return
        raise StorageError(errno.EAGAIN, f"cannot change {self._folder}: others were faster")

    def _remove_superseded(self) -> None:
        """Remove the numbers whose successors are old, from the lowest on."""
        listed = [each for each in self._storage.listed(self._folder) if each.path.stem.isdecimal()]
        listed.sort(key=lambda each: each.path.stem)
        for each, successor in itertools.pairwise(listed):
            if successor.age_seconds < _KEPT_SECONDS:
                break
            self._storage.delete(each.path)


def _decoded(content: bytes, path: str) -> _Seen:
    """Return the list in a file. Raises CorruptionError, FormatVersionError."""
    body = decode_checked_json(content, path, "a list of table folders")
    with readable(path, "a list of table folders"):
        subject = f"{path}: list of table folders"
        check_format_version(subject, body["folders_version"], _FOLDERS_VERSION)
        folders = {str(key): checked_name(id, "place") for key, id in body["folders"].items()}
        is_removed = bool(body.get("is_removed"))
        return _Seen(int(body["number"]), folders, str(body["id"]), is_removed)


def _below(names: Folders, key: str) -> list[str]:
    """Return the names of a folder and of those in it."""
    return [each for each in names if each == key or each.startswith(f"{key}/")]


def _taken(folder: Path) -> StorageError:
    return StorageError(errno.EEXIST, f"cannot create {folder}: it exists")
