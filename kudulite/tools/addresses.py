"""Tables and directories of tables by the addresses in a command, with the options of their stores.

    kudulite list s3://bucket/warehouse --storage-option aws_region=eu-west-1

`takes_storage_options` gives a command the option, and the functions here use what was given. The
option applies to all addresses of object stores in the command. Directories have no options, so a
copy from a directory to a store needs no second way to give them.

**Invariants**: no error shows a value that was given, because it may be a secret.

**Threads**: a command runs in one thread; each command sets the options, or none.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

import typer

import kudulite
from kudulite.errors import OptionError, UsageError
from kudulite.storage.address import Address, merged_storage_options, parse_address
from kudulite.storage.storage_options import Service
from kudulite.table.environment import Environment, environment_at
from kudulite.table.table_store import TableStore

_GIVEN: ContextVar[Mapping[str, str] | None] = ContextVar("storage options", default=None)

_StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="Of the object store, as in storage_options of Python; several times. Other users of"
        " the machine see it in the list of processes: set secrets in the environment.",
    ),
]


def takes_storage_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes `--storage-option` as well."""

    @functools.wraps(command)
    def run(*, storage_option: list[str] | None = None, **arguments: Any) -> None:
        options = _parsed(storage_option or [])
        if options:
            _check_known(options, _texts(arguments.values()))
        _GIVEN.set(options)
        command(**arguments)

    own = inspect.signature(command, eval_str=True)
    added = inspect.Parameter(
        "storage_option", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_StorageOptions
    )
    signature = own.replace(parameters=[*own.parameters.values(), added])
    run.__signature__ = signature  # type: ignore[attr-defined]
    return run


def _parsed(texts: Sequence[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for text in texts:
        word, found, value = text.partition("=")
        if not found or not word:
            raise OptionError(
                "--storage-option is KEY=VALUE, as in --storage-option aws_region=eu-west-1; one of"
                " those given is not"
            )
        if word in options:
            raise OptionError(f"--storage-option {word} is given twice; leave one of them out")
        options[word] = value
    return options


def _texts(arguments: Iterable[object]) -> list[str]:
    lists = [each if isinstance(each, list) else [each] for each in arguments]
    return [text for each in lists for text in each if isinstance(text, str)]


def _check_known(options: Mapping[str, str], texts: Iterable[str]) -> None:
    """Raise OptionError for an option that no address among the arguments has, or a wrong value."""
    stores: dict[Service, str] = {}
    for text in texts:
        try:
            service = parse_address(text).storage.service
        except UsageError:  # the command says what is wrong with it, if it is an address
            continue
        if service is not None:
            stores[service] = text
    if not stores:
        raise OptionError(
            "--storage-option is for an address of an object store, as in s3://bucket/prefix, and"
            " this command has none; a directory has no options"
        )
    for service, text in stores.items():
        others = [other for other in stores if other is not service]
        own = {
            word: value
            for word, value in options.items()
            if service.name_of(word) or not any(other.name_of(word) for other in others)
        }
        parse_address(text, own)


def given_storage_options() -> dict[str, str]:
    """Return the options that were given to the command."""
    return dict(_GIVEN.get() or {})


def use_storage_options(options: Mapping[str, str]) -> None:
    """Use the options of a command in a process that works for it."""
    _GIVEN.set(options)


def storage_options_of(address: object) -> dict[str, str]:
    """Return the options of the command for an address: none for a directory."""
    return merged_storage_options(str(address), {}, _GIVEN.get() or {})


def address_of(text: object) -> Address:
    """Return an address of the command. Raises UsageError, OptionError."""
    return parse_address(text, storage_options_of(text))


def environment_of(address: Address) -> Environment:
    """Return the environment of an address of the command."""
    return environment_at(address.storage)


def connect(root: object) -> kudulite.Client:
    """Open a directory of tables, without maintenance in the background."""
    return kudulite.connect(
        str(root), background_maintenance=False, storage_options=storage_options_of(root)
    )


def connect_beside(path: str) -> tuple[kudulite.Client, str]:
    """Return the directory of a table that may not be there yet, and the table's name."""
    address = address_of(path)
    if not address.path.name or address.path == address.storage.root:
        raise UsageError(f"{path} has no name of a table; add it, as in {path.rstrip('/')}/metrics")
    return connect(address.path.parent), address.path.name


def open_table(path: object) -> kudulite.Table:
    """Open a table by its folder or address."""
    return kudulite.open_table(str(path), storage_options=storage_options_of(path))


def open_store(path: str) -> TableStore:
    """Open the store below a table. Raises TableNotFoundError that says what the folder is."""
    address = address_of(path)
    store = TableStore(address.path, environment_of(address))
    store.newest()
    return store


def check_is_directory(root: str) -> None:
    """Raise BadParameter unless something is there, before a client would make the directory."""
    address = address_of(root)
    if not environment_of(address).storage.is_folder(address.path):
        raise typer.BadParameter(f"{root} is not a directory of tables")
