"""Commands that make, alter and remove a table, and those that name its moments.

    create  alter  rename  drop  recall  retention      tag  untag  tags  versions

A column is typed as `name:type`, with `!` at the end if it is NOT NULL: `host:string! load:double`.
The steps of one `alter` are one new version. They apply in this order: columns are dropped,
renamed, added, then get their defaults and storage, so these name a column as it is called
afterwards; ranges are dropped, then added.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import kudulite
from kudulite.errors import OptionError
from kudulite.model.hybrid_time import Timestamp
from kudulite.table.snapshot import ancient_history_mark
from kudulite.tools.addresses import (
    check_is_directory,
    connect,
    connect_beside,
    open_store,
    open_table,
)
from kudulite.tools.commands_measure import read_definition
from kudulite.tools.commands_write import (
    Encoding,
    HashPartitions,
    RangePartitions,
    Skip,
    Types,
    files_of,
    hash_partitions_of,
    range_partitions_of,
    schema_of_files,
)
from kudulite.tools.output import (
    AsJson,
    TablePath,
    names_of,
    print_json,
    print_rows,
    value_of_text,
)

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Owner = Annotated[str | None, typer.Option(help="The name of an owner; not enforced.")]
Comment = Annotated[str | None, typer.Option(help="A text about the table.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Of a column; for files that are written later."),
]
Ranges = Annotated[
    list[str] | None,
    typer.Option(metavar="JSON", help=r"A range as \[lower, upper]; null is unbounded."),
]
TagName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the tag.")]


def create(
    path: TablePath,
    columns: Annotated[
        list[str] | None, typer.Argument(metavar="NAME:TYPE…", help="`!` after a type: NOT NULL.")
    ] = None,
    primary_key: Annotated[
        str, typer.Option(help="The key columns in their order, separated by commas.")
    ] = "",
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="Take the columns of a data file."
        ),
    ] = None,
    definition: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="JSON that `schema` has printed."
        ),
    ] = None,
    encoding: Encoding = None,
    skip: Skip = None,
    types: Types = None,
    hash_partitions: HashPartitions = None,
    range_partitions: RangePartitions = None,
    owner: Owner = None,
    comment: Comment = None,
    as_json: AsJson = False,
) -> None:
    """Create an empty table with the columns given, those of a data file, or by a definition."""
    key = names_of(primary_key or None) or []
    ways = [bool(columns), like is not None, definition is not None]
    _check_ways(*ways, has_key=bool(key), has_file_options=bool(types or encoding or skip))
    options: dict[str, Any] = {
        "hash_partitions": hash_partitions_of(hash_partitions),
        "range_partitions": range_partitions_of(range_partitions),
        "owner": owner,
        "comment": comment,
    }
    history_seconds = None
    if definition is not None:
        defined = read_definition(definition)
        schema, history_seconds = defined.schema, defined.history_seconds
        options = defined.options | {n: given for n, given in options.items() if given is not None}
    elif like is not None:
        schema = schema_of_files(files_of([like], None, encoding, skip), key, types)
    else:
        schema = _schema(columns or [], key)
    client, name = connect_beside(path)
    made = client.create_table(name, schema, **options)
    if history_seconds is not None:
        made = client.new_table_alterer(made).set_history_retention(history_seconds).alter()
    if as_json:
        print_json({"path": str(made.path), "id": made.id, "tablets": made.tablet_count})
    else:
        names = ", ".join(made.schema.names)
        print(f"created {made.path}: {names}; {_counted(made.tablet_count, 'tablet')}")


def _check_ways(
    has_columns: bool,
    has_file: bool,
    has_definition: bool,
    *,
    has_key: bool,
    has_file_options: bool,
) -> None:
    """Raise OptionError unless the columns of a new table are given in one way."""
    if has_columns + has_file + has_definition != 1 or has_key == has_definition:
        raise OptionError(
            "create needs --primary-key, and either columns as NAME:TYPE or --like FILE; or only"
            " --definition FILE, which has a key"
        )
    if has_file_options and not has_file:
        raise OptionError("--types, --encoding and --skip are for --like FILE")


def alter(
    path: TablePath,
    drop_column: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The past loses the column, too.")
    ] = None,
    rename_column: Annotated[
        list[str] | None, typer.Option(metavar="OLD:NEW", help="No file is rewritten.")
    ] = None,
    add_column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="`!` after a type: NOT NULL, needs --set-default."),
    ] = None,
    set_default: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="The value of cells that an insert does not set."),
    ] = None,
    remove_default: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Inserts then set NULL.")
    ] = None,
    set_encoding: Settings = None,
    set_compression: Settings = None,
    set_column_comment: Settings = None,
    drop_range: Ranges = None,
    add_range: Ranges = None,
    owner: Owner = None,
    comment: Comment = None,
    as_json: AsJson = False,
) -> None:
    """Drop, rename, add and change columns and ranges, owner and comment, in one new version.

    Each option for columns and ranges may be given several times. An empty comment removes it.
    """
    table = open_table(path)
    alterer = _client_of(table).new_table_alterer(table)
    added = _alter_columns(alterer, table, drop_column, rename_column, add_column, set_default)
    for name in remove_default or []:
        alterer.alter_column(name).remove_default()
    changes = {"encoding": set_encoding, "compression": set_compression}
    for option, texts in (changes | {"comment": set_column_comment}).items():
        for text in texts or []:
            name, value = _parts(text, "=", f"the {option} in", "NAME=VALUE")
            getattr(added.get(name) or alterer.alter_column(name), option)(value)
    for text in drop_range or []:
        alterer.drop_range_partition(*_bounds(text))
    for text in add_range or []:
        alterer.add_range_partition(*_bounds(text))
    if owner is not None:
        alterer.set_owner(owner)
    if comment is not None:
        alterer.set_comment(comment)
    altered = alterer.alter()
    if as_json:
        print_json({"path": str(altered.path), "version": altered.version})
    else:
        print(f"version {altered.version}: {', '.join(map(repr, altered.schema.columns))}")


def _alter_columns(
    alterer: kudulite.TableAlterer,
    table: kudulite.Table,
    drop_column: list[str] | None,
    rename_column: list[str] | None,
    add_column: list[str] | None,
    set_default: list[str] | None,
) -> dict[str, kudulite.ColumnSpec]:
    """Give the steps for columns to the alterer; return the specs of columns that are added."""
    names = {name: table.schema.column(name).type for name in table.schema.names}
    for name in drop_column or []:
        alterer.drop_column(name)
        names.pop(name, None)
    for text in rename_column or []:
        old, new = _parts(text, ":", "--rename-column", "OLD:NEW")
        alterer.alter_column(old, rename_to=new)
        if old in names:
            names[new] = names.pop(old)
    added = {}
    for text in add_column or []:
        name, column_type, is_nullable = _column(text)
        added[name] = alterer.add_column(name, column_type, nullable=is_nullable)
        names[name] = column_type
    for text in set_default or []:
        name, value = _parts(text, "=", "--set-default", "NAME=VALUE")
        if name not in names:
            raise OptionError(f"--set-default: no column {name!r}; columns: {', '.join(names)}")
        default = value_of_text(name, names[name], value)
        (added.get(name) or alterer.alter_column(name)).default(default)
    return added


def rename(
    path: TablePath,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new name, without a folder.")],
    as_json: AsJson = False,
) -> None:
    """Rename a table in its directory, with its folder."""
    table = open_table(path)
    renamed = _client_of(table).rename_table(table.name, name)
    if as_json:
        print_json({"path": str(renamed.path), "name": renamed.name})
    else:
        print(f"{table.path} is now {renamed.path}")


def drop(
    path: TablePath,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    reserve: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Keep the table so long for `recall`: 12h, 7d."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete a table with all its history; asks first."""
    table = open_table(path)
    if not yes:
        table.flush()  # what is written to the log from now on keeps the table
    count, version = len(table), table.version
    seconds = None if reserve is None else _seconds(reserve)
    if not yes:
        if not is_terminal():
            raise OptionError("drop asks on a terminal only; give --yes to delete without asking")
        kept = "" if seconds is None else f" (it can be recalled for {_duration(seconds)})"
        question = f"delete {table.path} with {_counted(count, 'row')} and all its history{kept}?"
        typer.confirm(question, abort=True)
    # A write that was committed while the question stood keeps the table.
    if_version = None if yes else version
    client, found = _client_of(table), {"path": str(table.path), "rows": count}
    text = f"deleted {table.path} with {_counted(count, 'row')}"
    if seconds is None:
        client.delete_table(table.name, if_version=if_version)
    else:
        kept_table = client.soft_delete_table(table.name, seconds, if_version=if_version)
        found |= {"id": kept_table.id, "expires": kept_table.expires}
        text += f"; kudulite recall {table.path.parent} {kept_table.id} brings it back"
    if as_json:
        print_json(found)
    else:
        print(text)


def recall(
    root: Annotated[str, typer.Argument(metavar="ROOT", help="The table's directory.")],
    table_id: Annotated[
        str, typer.Argument(metavar="ID", help="Of `list --soft-deleted`, or of `drop`.")
    ],
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another name, if its own is taken.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring a table back that was dropped with --reserve."""
    check_is_directory(root)
    table = connect(root).recall_table(table_id, name)
    if as_json:
        print_json({"path": str(table.path), "rows": len(table)})
    else:
        print(f"{table.path} is back with {_counted(len(table), 'row')}")


def is_terminal() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin.isatty()


def retention(
    path: TablePath,
    duration: Annotated[
        str | None, typer.Argument(metavar="DURATION", help="Seconds, or as in 12h, 7d, 4w.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show for how long the past of a table stays readable, or set it."""
    store = open_store(path)
    if duration is not None:
        table = open_table(path)
        alterer = _client_of(table).new_table_alterer(table)
        alterer.set_history_retention(_seconds(duration)).alter()
    newest = store.newest()
    since = Timestamp(max(newest.created, ancient_history_mark(store, newest)))
    if as_json:
        print_json({"history_seconds": newest.history_seconds, "readable_since": since})
    else:
        print(f"history is kept for {_duration(newest.history_seconds)}; readable since {since}")


def tag(
    path: TablePath,
    name: TagName,
    at: Annotated[str | None, typer.Option(help="A moment; now by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Name a moment; it stays readable past the retention until `untag`."""
    _print_tags({name: open_table(path).tag(name, at)}, as_json)


def untag(path: TablePath, name: TagName, as_json: AsJson = False) -> None:
    """Delete a tag, so that history older than the retention may be removed."""
    table = open_table(path)
    moment = table.tags.get(name)
    table.delete_tag(name)
    if as_json:
        print_json([{"tag": name, "timestamp": moment}])
    else:
        print(f"tag {name} at {moment} is deleted")


def tags(path: TablePath, as_json: AsJson = False) -> None:
    """List the tags of a table, the oldest moment first."""
    _print_tags(open_table(path).tags, as_json)


def versions(
    path: TablePath,
    limit: Annotated[int | None, typer.Option(help="The most versions to list.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """List the newest versions of a table, newest first: when, by what, whom, and how many rows."""
    found = [vars(version) for version in open_table(path).versions()[:limit]]
    if as_json:
        print_json(found)
    elif found:
        print_rows(list(found[0]), [[*version.values()] for version in found], thousands=True)


def _print_tags(found: dict[str, Timestamp], as_json: bool) -> None:
    if as_json:
        print_json([{"tag": name, "timestamp": moment} for name, moment in found.items()])
    elif found:
        print_rows(("tag", "moment"), list(found.items()))


def _client_of(table: kudulite.Table) -> kudulite.Client:
    return connect(table.path.parent)


def _schema(texts: list[str], key: list[str]) -> kudulite.Schema:
    columns = [
        kudulite.column(name, column_type, nullable=is_nullable)
        for name, column_type, is_nullable in map(_column, texts)
    ]
    # The columns of the key come first, in its order.
    columns.sort(key=lambda column: key.index(column.name) if column.name in key else len(key))
    return kudulite.schema(columns, key)


def _column(text: str) -> tuple[str, kudulite.ColumnType, bool]:
    """Return the name and type in `name:type!`, and whether NULL is allowed."""
    name, type_text = _parts(text, ":", "column", "NAME:TYPE")
    return name, kudulite.parse_type(type_text.removesuffix("!")), not type_text.endswith("!")


def _parts(text: str, mark: str, what: str, form: str) -> tuple[str, str]:
    """Return both sides of the first `=` or the last `:`. Raises OptionError."""
    name, found, rest = text.partition(mark) if mark == "=" else text.rpartition(mark)
    if not found or not name or (not rest and mark == ":"):
        raise OptionError(f"{what} {text!r}: expected {form}")
    return name, rest


def _bounds(text: str) -> list[Any]:
    """Return the two bounds in a JSON text; a list is the values of several columns."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise OptionError(f"range {text!r} is not JSON: {error}") from None
    if not isinstance(found, list) or len(found) != 2:
        raise OptionError(f"range {text!r}: expected [lower, upper], as in '[0, 10]'")
    return found


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)([smhdw]?)", text.strip())
    if found is None:
        raise OptionError(f"{text!r} is no duration; give seconds, or a number with s, m, h, d, w")
    return int(found[1]) * _SECONDS[found[2]]


def _duration(seconds: int) -> str:
    for unit in "wdhm":
        if seconds and seconds % _SECONDS[unit] == 0:
            return f"{seconds // _SECONDS[unit]}{unit}"
    return f"{seconds}s"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
