"""Commands for maintenance, for checks, and for second copies of a table.

flush  maintain  check      of one table, or of many side by side
compact  copy               of one table
doctor                      of a file system or an object store
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import kudulite
from kudulite.errors import OptionError
from kudulite.shown.progress import Progress, byte_text
from kudulite.storage.storage import Storage
from kudulite.tools.addresses import address_of, environment_of, open_table, storage_options_of
from kudulite.tools.choice import chosen_tables
from kudulite.tools.commands_write import print_result
from kudulite.tools.doctor import Diagnosis, diagnose
from kudulite.tools.doctor_hosts import WAIT_SECONDS, diagnose_hosts
from kudulite.tools.doctor_store import diagnose_store
from kudulite.tools.outcomes import Processes, outcomes_in_processes, print_outcomes
from kudulite.tools.output import (
    AsJson,
    ColumnNames,
    TablePath,
    TablePaths,
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


def flush(paths: TablePaths, processes: Processes = None, as_json: AsJson = False) -> None:
    """Flush rows in memory, which are in the log, to files of tables."""
    choice = chosen_tables(paths)
    if not choice.is_one:
        outcomes = outcomes_in_processes(_flushed, choice, "flush of tables", processes)
        print_outcomes(outcomes, choice, _flush_columns, form=_flush_form, as_json=as_json)
        return
    found = _flushed(*choice.addresses)
    if as_json:
        print_json(_flush_form(found))
    else:
        print(f"{found['flushed_tablet_count']} of {found['tablet_count']} tablets were flushed")


def _flushed(address: str) -> dict[str, int]:
    table = open_table(address)
    return {"flushed_tablet_count": table.flush(), "tablet_count": table.tablet_count}


def _flush_form(found: Mapping[str, int]) -> dict[str, int]:
    return {"flushed_tablet_count": found["flushed_tablet_count"]}


def _flush_columns(found: Mapping[str, int]) -> dict[str, int]:
    return {"flushed": found["flushed_tablet_count"], "tablets": found["tablet_count"]}


def compact(path: TablePath, as_json: AsJson = False) -> None:
    """Compact a table completely, at any cost."""
    _print_maintenance(open_table(path).compact(), as_json)


def maintain(
    paths: TablePaths,
    grace_seconds: Annotated[
        float, typer.Option(help="Remove files replaced for longer than this.", min=0)
    ] = GRACE_SECONDS,
    staging_grace_seconds: Annotated[
        float, typer.Option(help="Abort writes without progress for longer than this.", min=0)
    ] = STAGING_GRACE_SECONDS,
    budget_megabytes: Budget = None,
    processes: Processes = None,
    as_json: AsJson = False,
) -> None:
    """Flush, compact where it pays, drop old history, and remove files that are not needed."""
    choice = chosen_tables(paths)
    work = partial(
        _maintained,
        grace_seconds=grace_seconds,
        staging_grace_seconds=staging_grace_seconds,
        budget_bytes=None if budget_megabytes is None else budget_megabytes << 20,
    )
    if choice.is_one:
        _print_maintenance(work(*choice.addresses), as_json)
        return
    outcomes = outcomes_in_processes(work, choice, "maintenance of tables", processes)
    print_outcomes(outcomes, choice, _maintenance_columns, form=_maintenance_form, as_json=as_json)


def _maintained(address: str, **options: Any) -> MaintenanceResult:
    return open_table(address).maintain(**options)


def _maintenance_columns(result: MaintenanceResult) -> dict[str, Any]:
    return {
        "flushed": result.flushed_tablet_count,
        "operations": len(result.operations),
        "written": byte_text(result.bytes_written),
        "busy": len(result.busy_tablet_ids),
        "removed": byte_text(result.garbage.byte_count),
    }


def check(paths: TablePaths, processes: Processes = None, as_json: AsJson = False) -> None:
    """Read whole tables and compare their files with the metadata; status 1 for problems."""
    choice = chosen_tables(paths)
    if choice.is_one:
        _print_report(_report(*choice.addresses), as_json)
        return
    outcomes = outcomes_in_processes(_report, choice, "check of tables", processes)
    outcomes = [o.damaged(o.result.problems) if o.result else o for o in outcomes]
    print_outcomes(outcomes, choice, _report_columns, as_json=as_json)


def _report(address: str) -> kudulite.CheckReport:
    return open_table(address).check()


def _report_columns(report: kudulite.CheckReport) -> dict[str, Any]:
    return {
        "version": report.version,
        "rows": report.row_count,
        "rowsets": report.rowset_count,
        "files": report.file_count,
        "bytes": byte_text(report.byte_count),
        "problems": len(report.problems),
    }


def _print_report(report: kudulite.CheckReport, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        print(
            f"version {report.version}: {report.row_count:,} rows, {report.rowset_count:,} rowsets,"
            f" {report.file_count:,} files, {byte_text(report.byte_count)}:"
            f" {len(report.problems) or 'no'} problems"
        )
        for problem in report.problems:
            print(f"  {problem}")
    if report.problems:
        raise typer.Exit(1)


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


def _maintenance_form(result: MaintenanceResult) -> dict[str, Any]:
    operations = [
        {
            "tablet_id": done.tablet_id,
            "kind": type(done.operation).__name__,
            **vars(done.operation),
            **vars(done.result),
        }
        for done in result.operations
    ]
    return {**vars(result), "operations": operations}


def _print_maintenance(result: MaintenanceResult, as_json: bool) -> None:
    if as_json:
        print_json(_maintenance_form(result))
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
