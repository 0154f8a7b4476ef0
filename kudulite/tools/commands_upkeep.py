"""Commands that look after tables and where they are: flush, compact, maintain, doctor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import kudulite
from kudulite.catalog.maintenance import (
    MaintenanceResult,
    Report,
    compact_table,
    maintain_table,
)
from kudulite.catalog.sweep import GRACE_SECONDS, STAGING_GRACE_SECONDS
from kudulite.tablet.maintenance_policy import Operation
from kudulite.tools.arguments import AsJson, TablePath
from kudulite.tools.doctor import diagnose
from kudulite.tools.output import Progress, byte_text, print_json, print_rows
from kudulite.tools.table_access import open_store

Budget = Annotated[
    int | None, typer.Option(help="Rewrite files of no more than so many megabytes.", min=0)
]

_WORDS = {
    "CollectHistory": "dropping history",
    "CompactColumns": "compacting columns",
    "CompactDeltas": "joining delta files",
    "CompactRowSets": "merging rowsets",
}


def flush(path: TablePath, as_json: AsJson = False) -> None:
    """Write to rowsets what the logs of a table hold."""
    table = kudulite.open_table(path)
    with Progress(f"flushing {table.name}"):
        count = table.flush()
    if as_json:
        print_json({"flushed_tablet_count": count})
    else:
        print(f"{count} of {table.tablet_count} tablets had something to flush")


def compact(path: TablePath, as_json: AsJson = False) -> None:
    """Bring a table to its best shape, whatever that rewrites."""
    store = open_store(path)
    with Progress(f"compacting {store.name}") as progress:
        result = compact_table(store, report=_reporter(store.name, progress))
    _print_maintenance(result, as_json)


def maintain(
    path: TablePath,
    grace_seconds: Annotated[
        float, typer.Option(help="Files superseded for longer are removed.", min=0)
    ] = GRACE_SECONDS,
    staging_grace_seconds: Annotated[
        float, typer.Option(help="Writes without progress for longer are given up.", min=0)
    ] = STAGING_GRACE_SECONDS,
    budget_megabytes: Budget = None,
    as_json: AsJson = False,
) -> None:
    """Flush, compact what is worth it, drop old history, and remove what nobody needs."""
    store = open_store(path)
    with Progress(f"maintaining {store.name}") as progress:
        result = maintain_table(
            store,
            grace_seconds=grace_seconds,
            staging_grace_seconds=staging_grace_seconds,
            budget_bytes=None if budget_megabytes is None else budget_megabytes << 20,
            report=_reporter(store.name, progress),
        )
    _print_maintenance(result, as_json)


def doctor(
    path: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", exists=True, file_okay=False, writable=True)
    ],
    as_json: AsJson = False,
) -> None:
    """Tell whether tables are safe on the file system of a directory; status 1 where not."""
    with Progress(f"trying the file system at {path}"):
        found = diagnose(path)
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


def _reporter(name: str, progress: Progress) -> Report:
    def report(tablet_id: str, operation: Operation) -> None:
        progress.say(f"{_WORDS[type(operation).__name__]} in tablet {tablet_id} of {name}")

    return report


def _print_maintenance(result: MaintenanceResult, as_json: bool) -> None:
    if as_json:
        print_json({**vars(result), "operations": [*_performed(result)]})
        return
    counts = Counter(type(done.operation).__name__ for done in result.operations)
    print(f"flushed {result.flushed_tablet_count} tablets")
    for kind, count in sorted(counts.items()):
        print(f"{_WORDS[kind]}: {count} times")
    print(f"{byte_text(result.bytes_written)} written by {len(result.operations)} operations")
    if result.busy_tablet_ids:
        print(f"{len(result.busy_tablet_ids)} tablets were left to another maintainer")
    swept = result.swept
    print(
        f"removed {swept.file_count} files ({byte_text(swept.byte_count)}),"
        f" {swept.version_count} versions, {swept.staging_folder_count} abandoned writes"
    )


def _performed(result: MaintenanceResult) -> Iterable[dict[str, Any]]:
    for done in result.operations:
        kind = type(done.operation).__name__
        yield {
            "tablet_id": done.tablet_id,
            "kind": kind,
            **vars(done.operation),
            **vars(done.result),
        }
