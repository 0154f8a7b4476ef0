"""Commands that keep tables twice: backup, backups, restore, copy."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import kudulite
from kudulite.mvcc.hybrid_time import format_timestamp
from kudulite.tools.arguments import AsJson, BackupSetPath, TablePath
from kudulite.tools.output import Progress, byte_text, print_json, print_rows

Kind = Annotated[
    bool | None,
    typer.Option("--full/--incremental", help="Without it: incremental where that can be."),
]


def backup(
    path: TablePath,
    target: BackupSetPath,
    full: Kind = None,
    content_hash: Annotated[
        bool, typer.Option(help="Also write a hash of all rows, for a restore to compare.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Back a table up; goes on with a backup that was interrupted."""
    with (
        kudulite.begin_backup(path, target, full=full, content_hash=content_hash) as job,
        Progress(f"backing up {path}") as progress,
    ):
        if not as_json and job.why_full:
            print(f"a full backup, since {job.why_full}")
        if not as_json and job.is_resumed:
            print("going on with a backup that was interrupted")
        job.run(lambda done, count: progress.say(f"backing up {path}: {done} of {count} pieces"))
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
    """List the backups of a set, the oldest first."""
    found = kudulite.list_backups(target)
    if verify:
        with Progress(f"verifying {target}") as progress:
            for made in found:
                progress.say(f"verifying {made.id}")
                made.verify()
    rows = [_about(made) for made in found]
    if as_json:
        print_json(rows)
    elif rows:
        names = ("id", "kind", "table", "rows", "changes", "files", "bytes")
        print_rows(names, [[row[name] for name in names] for row in rows], thousands=True)


def restore(
    target: BackupSetPath,
    path: TablePath,
    at: Annotated[
        str | None,
        typer.Option(help="A backup's id, or a moment: the newest backup at or before it."),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the table that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a table from its backups; goes on with a restore that was interrupted."""
    with (
        kudulite.begin_restore(target, path, at=at, overwrite=overwrite) as job,
        Progress(f"restoring {path}") as progress,
    ):
        job.run(lambda done, count: progress.say(f"restoring {path}: {done} of {count} files"))
        progress.say(f"checking {path}")
        made = job.backup
        job.finish()
    if as_json:
        print_json({"path": path, "backup": made.id, "moment": made.moment, "rows": made.row_count})
    else:
        print(f"{path}: {made.row_count:,} rows, as of {format_timestamp(made.moment)}")


def copy(
    path: TablePath,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The folder of the copy.")],
    present: Annotated[
        bool, typer.Option(help="Only the rows of the present, without the past.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a table, as it is at one moment, with its whole past or only the present."""
    table = kudulite.open_table(path)
    with Progress(f"copying {table.name}"):
        moment = table.copy_to(target, with_past=not present)
    if as_json:
        print_json({"path": target, "moment": moment, "with_past": not present})
    else:
        past = "without its past" if present else "with its past"
        print(f"{target}: {table.name} as of {format_timestamp(moment)}, {past}")


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
