"""The tables that the arguments of a command name: one, a directory of them, or a pattern.

    kudulite check wh/metrics           a table
    kudulite check wh                   a directory: all its tables
    kudulite check 'wh/day_*' other/t   a pattern for names of tables, and any number of arguments

A table that has lost its manifest is among those of its directory: the command on it fails, and
says what is missing. Files and other folders of a directory are left out. An argument that names
no table by itself is kept, so that the command on it says so.

Sets of backups are chosen in the same way: one, or a directory of them.

**Threads**: a command runs in one thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import kudulite
from kudulite.errors import (
    CorruptionError,
    KuduliteError,
    NotFoundError,
    StorageError,
    UsageError,
)
from kudulite.storage.storage import is_taken
from kudulite.table.table_list import list_tables
from kudulite.table.table_store import TableStore
from kudulite.tools.addresses import address_of, environment_of, storage_options_of

_WILDCARD = re.compile(r"[*?\[]")
_SHOWN_MAX = 10


@dataclass(frozen=True)
class Choice:
    """The addresses that arguments name; `is_one` if the only argument is one of them itself.

    `named` are those that are arguments themselves, and so must be there.
    """

    addresses: list[str]
    is_one: bool = False
    named: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """The name of each: the last part of its address, or all of it if two have the same."""
        last = [name_of(address) for address in self.addresses]
        return last if len(set(last)) == len(last) else self.addresses


def chosen_tables(arguments: Sequence[str]) -> Choice:
    """Return the tables that arguments name. Raises NotFoundError for a pattern that has none."""
    return _chosen(arguments, _is_table, _names_in, "table")


def chosen_sets(arguments: Sequence[str]) -> Choice:
    """Return the backup sets that arguments name, as `chosen_tables`."""
    return _chosen(arguments, is_set, _set_names_in, "backup set")


def _chosen(
    arguments: Sequence[str],
    is_one: Callable[[str], bool],
    names_in: Callable[[str], list[str]],
    noun: str,
) -> Choice:
    found: dict[str, None] = {}  # in the order of the arguments
    named: set[str] = set()
    for argument in arguments:
        if is_pattern(argument):
            root, _, pattern = argument.rpartition("/")
            names = names_in(root or ".")
            matching = [name for name in names if fnmatchcase(name, pattern)]
            if not matching:
                raise NotFoundError(
                    f"no {noun} in {root or '.'} matches {pattern!r}; there {_listed(names)}"
                )
            found |= dict.fromkeys(_joined(root, matching))
        elif names := _names_of_many(argument, is_one, names_in):
            found |= dict.fromkeys(_joined(argument, names))
        else:
            address = argument.rstrip("/") or argument
            found[address] = None
            named.add(address)
    return Choice(list(found), len(arguments) == 1 and len(named) == 1, frozenset(named))


def _names_of_many(
    argument: str, is_one: Callable[[str], bool], names_in: Callable[[str], list[str]]
) -> list[str]:
    """Return the names in a directory of many, none for anything else.

    An argument that cannot be looked at is one itself: the command on it says what is wrong, and
    the others are done.
    """
    try:
        return [] if is_one(argument) else names_in(argument)
    except StorageError:
        return []


def name_of(address: str) -> str:
    """Return the last part of an address, as it was typed: the name of a table."""
    return address.rstrip("/").rpartition("/")[2]


def is_pattern(argument: str) -> bool:
    """Whether an argument is a pattern; not if something has its very name."""
    if not _WILDCARD.search(argument):
        return False
    address = address_of(argument)
    return not is_taken(environment_of(address).storage, address.path)


def _joined(root: str, names: Iterable[str]) -> list[str]:
    return [f"{root.rstrip('/')}/{name}" if root else name for name in names]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "is none"
    more = ", …" if len(names) > _SHOWN_MAX else ""
    return f"are {', '.join(names[:_SHOWN_MAX])}{more}"


def _is_table(address: str) -> bool:
    place = address_of(address)
    try:
        return TableStore(place.path, environment_of(place)).is_there()
    except CorruptionError:
        return True


def tables_in(root: str) -> list[str]:
    """Return the addresses of the tables of a directory, damaged ones included; none without it."""
    return _joined(root, _names_in(root))


def _names_in(root: str) -> list[str]:
    address = address_of(root)
    environment = environment_of(address)
    if not environment.storage.is_folder(address.path):
        return []
    return list(list_tables(environment, address.path))


def is_set(address: str) -> bool:
    """Whether there are backups at an address, perhaps damaged ones."""
    return _has_backups(address, storage_options_of(address))


def _has_backups(address: str, options: Mapping[str, str]) -> bool:
    try:
        return kudulite.newest_backup(address, storage_options=options) is not None
    except UsageError:
        raise
    except KuduliteError:
        return True


def sets_in(root: str) -> list[str]:
    """Return the addresses of the backup sets in a directory; none without it."""
    return _joined(root, _set_names_in(root))


def _set_names_in(root: str) -> list[str]:
    address, options = address_of(root), storage_options_of(root)
    storage = environment_of(address).storage

    def is_one(path: Path) -> bool:
        (place,) = _joined(root, [path.name])
        return storage.is_folder(path) and _has_backups(place, options)

    paths = storage.entries(address.path)
    found = storage.side_by_side(is_one, paths)
    return [path.name for path, is_found in zip(paths, found, strict=True) if is_found]
