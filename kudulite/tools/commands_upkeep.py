"""Commands for maintenance, and for second copies of a table.

    flush  compact  maintain  doctor      backup  backups  restore  copy

`doctor` examines a file system or an object store, all others work on a table or its backups.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import kudulite
from kudulite.chain.folder import has_table_files
from kudulite.errors import OptionError, UsageError
from kudulite.shown.progress import Progress, byte_text
from kudulite.storage.storage import Storage
from kudulite.tools.addresses import address_of, environment_of, open_table, storage_options_of
from kudulite.tools.commands_write import print_result
from kudulite.tools.doctor import Diagnosis, diagnose
from kudulite.tools.doctor_hosts import WAIT_SECONDS, diagnose_hosts
from kudulite.tools.doctor_store import diagnose_store
from kudulite.tools.output import (
    AsJson,
    BackupSetPath,
    ColumnNames,
    TablePath,
    names_of,
    print_json,
    print_rows,
)
from kudulite.upkeep.garbage_collection import GRACE_SECONDS, STAGING_GRACE_SECONDS
from kudulite.upkeep.maintenance import MaintenanceResult

if TYPE_CHECKING:
    from kudulite.storage.object_storage import ObjectStorage

Budget = Annotated[int | None, typer.Option(help="The most megabytes of files to rewrite.", min=0)]


class WriteType(enum.StrEnum):
    """How copied rows are written to a table that exists."""

    INSERT = "insert"
    UPSERT = "upsert"


_WORDS = {
    "CollectHistory": "dropping history",
    "CompactColumns": "compacting columns",
    "CompactDeltas": "joining delta files",
    "CompactRowSets": "merging rowsets",
}

Kind = Annotated[
    bool | None,
    typer.Option("--full/--incremental", help="By default incremental if possible."),
]


def flush(path: TablePath, as_json: AsJson = False) -> None:
    """Flush rows in memory, which are in the log, to files of a table."""
    table = open_table(path)
    count = table.flush()
    if as_json:
        print_json({"flushed_tablet_count": count})
    else:
        print(f"{count} of {table.tablet_count} tablets were flushed")


def compact(path: TablePath, as_json: AsJson = False) -> None:
    """Compact a table completely, at any cost."""
    _print_maintenance(open_table(path).compact(), as_json)


def maintain(
    path: TablePath,
    grace_seconds: Annotated[
        float, typer.Option(help="Remove files replaced for longer than this.", min=0)
    ] = GRACE_SECONDS,
    staging_grace_seconds: Annotated[
        float, typer.Option(help="Abort writes without progress for longer than this.", min=0)
    ] = STAGING_GRACE_SECONDS,
    budget_megabytes: Budget = None,
    as_json: AsJson = False,
) -> None:
    """Flush, compact where it pays, drop old history, and remove files that are not needed."""
    result = open_table(path).maintain(
        grace_seconds,
        staging_grace_seconds,
        budget_bytes=None if budget_megabytes is None else budget_megabytes << 20,
    )
    _print_maintenance(result, as_json)


def doctor(
    path: Annotated[
        str, typer.Argument(metavar="ROOT", help="A directory, or s3://bucket/prefix.")
    ],
    hosts: Annotated[
        int,
        typer.Option(
            help="Of a directory: test between so many hosts; run the same command on each.", min=1
        ),
    ] = 1,
    wait_seconds: Annotated[
        float, typer.Option(help="Wait so long for another host.", min=1)
    ] = WAIT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Check whether a file system or an object store is safe for tables; status 1 if not."""
    address = address_of(path)
    storage = environment_of(address).storage
    with Progress(f"test of {address.path}"):
        if storage.is_directory:
            found = _diagnose_directory(storage, address.path, hosts, wait_seconds)
        elif hosts > 1:
            raise OptionError(
                f"{path}: --hosts tests locks and caches of a shared file system, and a store has"
                " none; run doctor without it, on each machine for its own credentials"
            )
        else:
            found = diagnose_store(cast("ObjectStorage", storage), address.path)
    if as_json:
        print_json({**asdict(found), "verdict": found.verdict})
    else:
        signs = {True: "ok", False: "WRONG"}
        print_rows(
            ("", "what", "found"),
            [
                ("warning" if f.is_warning else signs[f.is_ok], f.name, f.detail)
                for f in found.findings
            ],
        )
        print(f"\n{path} ({found.kind}): {found.verdict}")
    if not found.is_safe:
        raise typer.Exit(1)


def _diagnose_directory(
    storage: Storage, place: Path, hosts: int, wait_seconds: float
) -> Diagnosis:
    if not place.is_dir() or not storage.directory.is_writable(place):
        raise typer.BadParameter(f"{place} is not a directory to which you may write")
    found = diagnose(place, hosts)
    return found.joined(diagnose_hosts(place, hosts, wait_seconds)) if hosts > 1 else found


def _print_maintenance(result: MaintenanceResult, as_json: bool) -> None:
    if as_json:
        operations = [
            {
                "tablet_id": done.tablet_id,
                "kind": type(done.operation).__name__,
                **vars(done.operation),
                **vars(done.result),
            }
            for done in result.operations
        ]
        print_json({**vars(result), "operations": operations})
        return
    counts = Counter(type(done.operation).__name__ for done in result.operations)
    print(f"flushed {result.flushed_tablet_count} tablets")
    for kind, count in sorted(counts.items()):
        print(f"{_WORDS[kind]}: {count} times")
    print(f"{byte_text(result.bytes_written)} written by {len(result.operations)} operations")
    if result.busy_tablet_ids:
        print(f"{len(result.busy_tablet_ids)} tablets are being maintained by another process")
    garbage = result.garbage
    print(
        f"removed {garbage.file_count} files ({byte_text(garbage.byte_count)}),"
        f" {garbage.version_count} versions, {garbage.staging_folder_count} abandoned writes"
    )


def backup(
    path: TablePath,
    target: BackupSetPath,
    full: Kind = None,
    content_hash: Annotated[
        bool, typer.Option(help="Also write a hash of all rows, for a restore to compare.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back up a table, or continue an interrupted backup."""
    table, options = open_table(path), storage_options_of(target)
    with kudulite.begin_backup(
        table, target, full=full, content_hash=content_hash, storage_options=options
    ) as job:
        if not as_json and job.why_full:
            print(f"a full backup, because {job.why_full}")
        if not as_json and job.is_resumed:
            print("continuing an interrupted backup")
        job.run()
        made = job.finish()
    if as_json:
        print_json(_about(made))
    else:
        print(
            f"{made.kind} backup {made.id}: {made.written_row_count:,}"
            f" {'rows' if made.is_full else 'changes'}, {byte_text(made.byte_count)}; the table had"
            f" {made.row_count:,} rows"
        )


def backups(
    target: BackupSetPath,
    verify: Annotated[bool, typer.Option(help="Read all files and compare checksums.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the backups of a set, the oldest first; --verify ends with status 1 for damage."""
    address, options = address_of(target), storage_options_of(target)
    storage = environment_of(address).storage
    if has_table_files(storage, address.path):
        raise UsageError(f"{target} is a table, not the directory of a table's backups")
    if not storage.is_folder(address.path):
        if storage.exists(address.path):
            raise UsageError(f"{target} is a file, not the directory of a table's backups")
        print(f"kudulite: {target} does not exist", file=sys.stderr)
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


def _print_damage(damaged: dict[str, list[str]], as_json: bool) -> None:
    if as_json:
        print_json({"problems": damaged})
        return
    for name, problems in damaged.items():
        print(f"backup {name}: {len(problems)} problem{'' if len(problems) == 1 else 's'}")
        for problem in problems:
            print(f"  {problem}")


def restore(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SET", help="The place of the backups; with --to or --version, a table."
        ),
    ],
    path: Annotated[
        str | None, typer.Argument(metavar="PATH", help="The folder of the restored table.")
    ] = None,
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
    overwrite: Annotated[bool, typer.Option(help="Replace an existing table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a table from its backups, or bring a table back to its past.

    An interrupted restore from backups continues.
    """
    if to is not None or version is not None:
        if path is not None or at is not None or overwrite:
            raise UsageError(
                "with --to or --version, restore takes a table only: kudulite restore TABLE --to"
                " MOMENT"
            )
        table = open_table(source)
        print_result(table.restore(to, version=version), as_json)
        return
    if path is None:
        raise UsageError("restore takes SET and PATH, or a table and --to MOMENT or --version")
    with kudulite.begin_restore(
        source,
        path,
        at=at,
        overwrite=overwrite,
        storage_options=storage_options_of(source),
        table_storage_options=storage_options_of(path),
    ) as job:
        job.run()
        made = job.backup
        job.finish()
    if as_json:
        print_json({"path": path, "backup": made.id, "moment": made.moment, "rows": made.row_count})
    else:
        print(f"{path}: {made.row_count:,} rows, as of {made.moment}")


def copy(
    path: TablePath,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder of the copy.")],
    present: Annotated[bool, typer.Option(help="Only the present rows, without the past.")] = False,
    where: Annotated[
        str | None, typer.Option(help="Only the present rows that meet a condition, as in `scan`.")
    ] = None,
    write: Annotated[
        WriteType | None, typer.Option(help="Write the rows to the table at TARGET, which exists.")
    ] = None,
    columns: ColumnNames = None,
    at: Annotated[str | None, typer.Option(help="With --write: the rows of a moment.")] = None,
    as_json: AsJson = False,
) -> None:
    """Copy a table as of one moment, with its whole past or only present rows, or into another.

    With --write the rows are one commit of the other table, of --columns if they are given.
    """
    table = open_table(path)
    condition: Any = () if where is None else where
    if write is not None:
        rows = table.scan(names_of(columns), condition, at=at).to_reader()
        other = open_table(target)
        print_result(other.insert(rows) if write == "insert" else other.upsert(rows), as_json)
        return
    if columns is not None or at is not None:
        raise OptionError("copy --columns and --at are for --write, into a table that exists")
    is_present = present or where is not None
    moment = table.copy_to(
        target,
        with_past=not is_present,
        where=condition,
        storage_options=storage_options_of(target),
    )
    if as_json:
        print_json({"path": target, "moment": moment, "with_past": not is_present})
    else:
        past = "without its past" if is_present else "with its past"
        print(f"{target}: {table.name} as of {moment}, {past}")


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
