"""Commands for backups: backup, backups, restore.

    backup wh/metrics /backups/metrics      a table to its set
    backup wh /backups                      all tables of a directory, each to /backups/TABLE
    restore /backups/metrics wh2/metrics    a set to a table
    restore /backups wh2                    all sets of a directory, each to wh2/SET
    restore wh --to MOMENT                  all tables to a moment of their own past

**Invariants**: a directory of sets never becomes a set itself, nor a set a directory of sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

import kudulite
from kudulite.chain.folder import has_table_files
from kudulite.errors import NotFoundError, UsageError
from kudulite.shown.progress import byte_text
from kudulite.tools.addresses import address_of, environment_of, open_table, storage_options_of
from kudulite.tools.choice import (
    Choice,
    chosen_sets,
    chosen_tables,
    is_set,
    name_of,
    sets_in,
)
from kudulite.tools.commands_write import print_result, result_form
from kudulite.tools.outcomes import (
    FigureProcesses,
    Processes,
    figure_outcomes,
    outcomes_in_processes,
    print_outcomes,
)
from kudulite.tools.output import AsJson, TablePaths, print_json, print_rows

Kind = Annotated[
    bool | None,
    typer.Option("--full/--incremental", help="By default incremental if possible."),
]
SetPaths = Annotated[
    list[str],
    typer.Argument(
        metavar="SET…", help="Places of the backups of a table, or directories of sets."
    ),
]


# -- taking backups


def backup(
    paths: TablePaths,
    target: Annotated[
        str,
        typer.Argument(
            metavar="SET", help="The place of the table's backups; of many tables, a directory."
        ),
    ],
    full: Kind = None,
    content_hash: Annotated[
        bool, typer.Option(help="Also write a hash of all rows, for a restore to compare.")
    ] = False,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Back up a table, or continue an interrupted backup; or many tables, each to SET/TABLE."""
    choice = chosen_tables(paths)
    work = partial(_backed_up, full=full, content_hash=content_hash)
    if choice.is_one:
        if not is_set(target) and (inside := sets_in(target)):
            raise UsageError(
                f"{target} is a directory of backup sets, as of {name_of(inside[0])}; give the set"
                f" of the table, as in {target.rstrip('/')}/{name_of(choice.addresses[0])}"
            )
        made = work(choice.addresses[0], target=target)
        if as_json:
            print_json(made["backup"])
        else:
            for note in made["notes"]:
                print(note)
            print(made["text"])
        return
    _check_targets(choice, target)
    outcomes = outcomes_in_processes(
        partial(work, sets=target), choice, "backup of tables", processes
    )
    print_outcomes(outcomes, choice, _backup_columns, form=_form_of_backup, as_json=as_json)


def _check_targets(choice: Choice, target: str) -> None:
    """Raise UsageError unless each table can have a set of its own below a directory."""
    if is_set(target):
        raise UsageError(
            f"{target} is the backup set of one table; of many tables, give the directory of their"
            " sets, which gets one for each"
        )
    counts = Counter(map(name_of, choice.addresses))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise UsageError(
            f"several tables are named {', '.join(twice)}, and would share a set in {target}; back"
            " up their directories to different ones"
        )


def _backed_up(
    address: str,
    *,
    target: str | None = None,
    sets: str | None = None,
    full: bool | None,
    content_hash: bool,
) -> dict[str, Any]:
    """Back up a table to a set, or to that of its name in a directory of sets."""
    place = target or f"{(sets or '').rstrip('/')}/{name_of(address)}"
    table, options = open_table(address), storage_options_of(place)
    with kudulite.begin_backup(
        table, place, full=full, content_hash=content_hash, storage_options=options
    ) as job:
        notes = [f"a full backup, because {job.why_full}"] if job.why_full else []
        notes += ["continuing an interrupted backup"] if job.is_resumed else []
        job.run()
        made = job.finish()
    text = (
        f"{made.kind} backup {made.id}: {made.written_row_count:,}"
        f" {'rows' if made.is_full else 'changes'}, {byte_text(made.byte_count)}; the table had"
        f" {made.row_count:,} rows"
    )
    return {"backup": _about(made), "notes": notes, "text": text}


def _form_of_backup(found: Mapping[str, Any]) -> Any:
    return found["backup"]


def _backup_columns(found: Mapping[str, Any]) -> dict[str, Any]:
    made = found["backup"]
    names = ("kind", "rows", "changes", "deletes")
    return {name: made[name] for name in names} | {"bytes": byte_text(made["bytes"])}


# -- looking at backups


def backups(
    paths: SetPaths,
    verify: Annotated[bool, typer.Option(help="Read all files and compare checksums.")] = False,
    processes: FigureProcesses = None,
    as_json: AsJson = False,
) -> None:
    """List the backups of a set, the oldest first, or the sets of a directory.

    The status is 1 for a place that is not there, and with --verify for damage.
    """
    choice = chosen_sets(paths)
    if not choice.is_one:
        outcomes = figure_outcomes(
            partial(_set_summary, verify=verify), choice, "backup sets", processes
        )
        outcomes = [outcome.damaged(_problems(outcome.result)) for outcome in outcomes]
        print_outcomes(outcomes, choice, _set_columns, noun="set", as_json=as_json)
        return
    (target,) = choice.addresses
    _check_is_place(target)
    options = storage_options_of(target)
    if verify:
        damaged = kudulite.verify_backups(target, storage_options=options)
        if damaged:
            _print_damage(damaged, as_json)
            raise typer.Exit(1)
    rows = [_about(made) for made in kudulite.list_backups(target, storage_options=options)]
    if as_json:
        print_json(rows)
    elif rows:
        names = ("id", "kind", "table", "rows", "changes", "files", "bytes")
        print_rows(names, [[row[name] for name in names] for row in rows], thousands=True)


def _check_is_place(target: str) -> None:
    """Raise UsageError or NotFoundError unless there may be backups at an address."""
    address = address_of(target)
    storage = environment_of(address).storage
    if has_table_files(storage, address.path):
        raise UsageError(f"{target} is a table, not the directory of a table's backups")
    if storage.is_folder(address.path):
        return
    if storage.exists(address.path):
        raise UsageError(f"{target} is a file, not the directory of a table's backups")
    raise NotFoundError(f"{target} does not exist; a backup makes it")


def _set_summary(target: str, *, verify: bool) -> dict[str, Any]:
    options = storage_options_of(target)
    problems = kudulite.verify_backups(target, storage_options=options) if verify else {}
    made = kudulite.list_backups(target, storage_options=options) if not problems else []
    newest = _about(made[-1]) if made else None
    return {"backups": len(made), "newest": newest, "problems": problems}


def _problems(found: Mapping[str, Any] | None) -> list[str]:
    return [line for lines in found["problems"].values() for line in lines] if found else []


def _set_columns(found: Mapping[str, Any]) -> dict[str, Any]:
    newest = found["newest"] or {}
    names = ("kind", "table", "rows")
    return {"backups": found["backups"], "newest": newest.get("id")} | {
        name: newest.get(name) for name in names
    }


def _print_damage(damaged: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        print_json({"problems": damaged})
        return
    for name, problems in damaged.items():
        print(f"backup {name}: {len(problems)} problem{'' if len(problems) == 1 else 's'}")
        for problem in problems:
            print(f"  {problem}")


def _about(made: kudulite.Backup) -> dict[str, Any]:
    return {
        "id": made.id,
        "kind": made.kind,
        "table": made.table_name,
        "table_id": made.table_id,
        "start": made.start,
        "moment": made.moment,
        "parent": made.parent,
        "rows": made.row_count,
        "changes": 0 if made.is_full else made.written_row_count,
        "deletes": made.delete_count,
        "files": len(made.files),
        "bytes": made.byte_count,
        "content_hash": None if made.content_hash is None else f"{made.content_hash:016x}",
        "path": str(made.path),
    }


# -- restoring


def restore(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="SET… PATH",
            help="Places of backups, and the table to make, or the directory of many;"
            " with --to or --version, only tables.",
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT",
            help="Without backups: the rows of that moment of a table become the rows of now.",
        ),
    ] = None,
    version: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER", help="As --to, with the number of a version that `versions` lists."
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="A backup's id, or a moment: the newest backup at or before it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace existing tables.")] = False,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Restore a table from its backups, or bring a table back to its past; or many tables.

    An interrupted restore from backups continues.
    """
    if to is not None or version is not None:
        # A set among them was meant with --at, and the table beside it must stay as it is.
        if at is not None or overwrite or len(set(paths)) < len(paths) or any(map(is_set, paths)):
            raise UsageError(
                "with --to or --version, restore takes tables only, each once: kudulite restore"
                " TABLE --to MOMENT"
            )
        _restore_past(paths, to, version, processes, as_json)
        return
    *sources, path = paths
    if not sources:
        raise UsageError("restore takes SET and PATH, or a table and --to MOMENT or --version")
    _restore_sets(chosen_sets(sources), path, at, overwrite, processes, as_json)


def _restore_sets(
    choice: Choice,
    path: str,
    at: str | None,
    overwrite: bool,
    processes: int | None,
    as_json: bool,
) -> None:
    work = partial(_restored, at=at, overwrite=overwrite)
    if choice.is_one:
        made = work(choice.addresses[0], path=path)
        if as_json:
            print_json(made)
        else:
            print(f"{path}: {made['rows']:,} rows, as of {made['moment']}")
        return
    address = address_of(path)
    if has_table_files(environment_of(address).storage, address.path):
        raise UsageError(f"{path} is a table; give the directory for the tables of many sets")
    work = partial(work, root=path)
    outcomes = outcomes_in_processes(work, choice, "restore of tables", processes)
    print_outcomes(outcomes, choice, _restored_columns, noun="set", as_json=as_json)


def _restored(
    source: str,
    *,
    path: str | None = None,
    root: str | None = None,
    at: str | None,
    overwrite: bool,
) -> dict[str, Any]:
    """Restore a set to a table, or to that of its name in a directory."""
    place = path or f"{(root or '').rstrip('/')}/{name_of(source)}"
    with kudulite.begin_restore(
        source,
        place,
        at=at,
        overwrite=overwrite,
        storage_options=storage_options_of(source),
        table_storage_options=storage_options_of(place),
    ) as job:
        job.run()
        made = job.backup
        job.finish()
    return {"path": place, "backup": made.id, "moment": made.moment, "rows": made.row_count}


def _restored_columns(made: Mapping[str, Any]) -> dict[str, Any]:
    return {"rows": made["rows"], "as of": str(made["moment"]), "path": made["path"]}


def _restore_past(
    paths: Sequence[str],
    to: str | None,
    version: int | None,
    processes: int | None,
    as_json: bool,
) -> None:
    choice = chosen_tables(paths)
    work = partial(_brought_back, to=to, version=version)
    if choice.is_one:
        print_result(work(choice.addresses[0]), as_json)
        return
    if version is not None:
        raise UsageError(
            "--version is of one table, because each counts its own; give many tables a moment with"
            " --to"
        )
    outcomes = outcomes_in_processes(work, choice, "restore of tables", processes)
    print_outcomes(outcomes, choice, _result_columns, form=result_form, as_json=as_json)


def _brought_back(address: str, *, to: str | None, version: int | None) -> kudulite.WriteResult:
    return open_table(address).restore(to, version=version)


def _result_columns(result: kudulite.WriteResult) -> dict[str, int]:
    return {name: getattr(result, name) for name in ("inserted", "updated", "deleted")}
