"""Commands that look at all tables of a directory: list, metrics.

    list      one row per table; --long adds its last write, its need of upkeep, and its backup
    metrics   the statistics of tables as OpenMetrics text

A table that cannot be read is one of the rows or samples, and none of the others is missing for it.
The command then ends with status 1.
"""

from __future__ import annotations

import datetime
from functools import partial
from typing import Annotated, Any

import typer

import kudulite
from kudulite.errors import CorruptionError, OptionError, StorageError
from kudulite.model.hybrid_time import Timestamp
from kudulite.shown.openmetrics import openmetrics
from kudulite.shown.progress import byte_text
from kudulite.storage.address import DIRECTORIES
from kudulite.tools.addresses import (
    address_of,
    check_is_directory,
    connect,
    open_table,
    storage_options_of,
)
from kudulite.tools.choice import Choice, chosen_tables, name_of, tables_in
from kudulite.tools.outcomes import (
    FigureProcesses,
    Outcome,
    State,
    end_with,
    figure_outcomes,
    outcomes_here,
    print_outcome_rows,
)
from kudulite.tools.output import AsJson, TablePaths, is_table, print_json, print_rows
from kudulite.upkeep.assessment import Level, assess, worst
from kudulite.upkeep.statistics import statistics_families

_UNITS = ((7 * 86_400, "w"), (86_400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def list_tables(
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="A directory of tables, or s3://bucket/prefix.")
    ],
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also the last write and the need of upkeep.")
    ] = False,
    backups: Annotated[
        str | None,
        typer.Option(
            metavar="SETS", help="With --long: how old the newest backups are, in SETS/TABLE."
        ),
    ] = None,
    soft_deleted: Annotated[
        bool, typer.Option("--soft-deleted", help="Those dropped with --reserve, with their ids.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the tables of a directory; status 1 if one of them is damaged."""
    check_is_directory(root)
    address = address_of(root)
    if address.storage == DIRECTORIES and is_table(address.path):
        raise typer.BadParameter(
            f"{root} is a table, not a directory of tables; see `kudulite describe {root}`, or"
            f" list {address.path.parent}"
        )
    if backups is not None and not long:
        raise OptionError("--backups SETS is for --long: kudulite list --long --backups SETS ROOT")
    if soft_deleted:
        _print_soft_deleted(root, as_json)
        return
    choice = Choice(tables_in(root))
    if not choice.addresses:
        if as_json:
            print_json([])
        return
    outcomes = outcomes_here(partial(_summary, sets=backups), choice, f"list of {root}")
    outcomes = [o.damaged(o.result["backup_errors"]) if o.result else o for o in outcomes]
    outcomes = [outcome for outcome in outcomes if outcome.state != State.DELETED]
    if as_json:
        print_json([_form(outcome, long, backups is not None) for outcome in outcomes])
    else:
        rows = [_row(outcome, long, backups is not None) for outcome in outcomes]
        print_outcome_rows(outcomes, rows)
    end_with(outcomes)


def _print_soft_deleted(root: str, as_json: bool) -> None:
    listed = connect(root).list_soft_deleted_tables()
    found = [{n: v for n, v in vars(table).items() if n != "path"} for table in listed]
    if as_json:
        print_json(found)
    elif found:
        print_rows(list(found[0]), [[*table.values()] for table in found], thousands=True)


_PLAIN = ("name", "rows", "tablets", "bytes", "log_bytes", "version", "owner", "comment")
_LONG = ("unflushed_rows", "last_write", "upkeep", "advice")


def _summary(address: str, sets: str | None) -> dict[str, Any]:
    table = open_table(address)
    figures = table.statistics
    findings = assess(figures, address)
    found = {
        "name": table.name,
        "rows": figures.live_row_count,
        "tablets": figures.tablet_count,
        "bytes": figures.bytes_on_disk,
        "log_bytes": figures.log_bytes,
        "version": figures.version,
        "owner": table.owner,
        "comment": table.comment,
        "unflushed_rows": figures.unflushed_row_count,
        "last_write": figures.last_write,
        "upkeep": worst(findings),
        "advice": [vars(each) for each in findings if each.level != Level.GOOD],
    }
    return found | ({"backup_errors": []} if sets is None else _backup_of(table, sets))


def _backup_of(table: kudulite.Table, sets: str) -> dict[str, Any]:
    place = f"{sets.rstrip('/')}/{table.name}"
    try:
        newest = kudulite.newest_backup(place, storage_options=storage_options_of(place))
    except (CorruptionError, StorageError) as error:
        return {"backup": None, "backup_errors": [str(error)]}
    is_of_it = newest is not None and newest.table_id == table.id
    return {"backup": newest.moment if newest and is_of_it else None, "backup_errors": []}


def _form(outcome: Outcome, is_long: bool, has_backups: bool) -> dict[str, Any]:
    """Return one table as JSON: a table that cannot be read has its name and the error only."""
    names = [*_PLAIN, *(_LONG if is_long else ()), *(["backup"] if has_backups else [])]
    found = outcome.result or {"name": name_of(outcome.address)}
    ended = {"state": str(outcome.state), "error": outcome.error}
    return {name: found.get(name) for name in names} | ended


def _row(outcome: Outcome, is_long: bool, has_backups: bool) -> dict[str, Any]:
    """Return the columns of one table; of one that cannot be read, its name and state."""
    found = outcome.result
    if found is None:
        return {"name": name_of(outcome.address), "state": str(outcome.state)}
    if not is_long:
        return {name: found[name] for name in _PLAIN} | {"state": str(outcome.state)}
    row = {
        "name": found["name"],
        "state": str(outcome.state),
        "rows": found["rows"],
        "bytes": byte_text(found["bytes"]),
        "log": byte_text(found["log_bytes"]),
        "unflushed": found["unflushed_rows"],
        "last write": f"{found['last_write'].to_datetime():%Y-%m-%dT%H:%M:%SZ}",
        "upkeep": str(found["upkeep"]),
    }
    return row | ({"backup": _age_text(found["backup"])} if has_backups else {})


def _age_text(moment: Timestamp | None) -> str:
    """Return how long ago a moment was, in its largest unit; `none` if there is none."""
    if moment is None:
        return "none"
    age = max(0, int((datetime.datetime.now(datetime.UTC) - moment.to_datetime()).total_seconds()))
    seconds, unit = next((s, u) for s, u in _UNITS if age >= s or s == 1)
    return f"{age // seconds}{unit} ago"


# -- metrics


def metrics(paths: TablePaths, processes: FigureProcesses = None) -> None:
    """Print the statistics of tables as OpenMetrics text, as Prometheus reads it.

    Tables that cannot be read are counted, and the others printed; the status is 1 then. Counters
    of a process are `table.metrics` in Python.
    """
    choice = chosen_tables(paths)
    outcomes = figure_outcomes(_figures, choice, "metrics of tables", processes)
    outcomes = [outcome for outcome in outcomes if outcome.state != State.DELETED]
    tables = [(_labels(outcome.address), outcome.result) for outcome in outcomes]
    print(openmetrics(statistics_families(tables)), end="")
    end_with(outcomes)


def _figures(address: str) -> kudulite.TableStatistics:
    return open_table(address).statistics


def _labels(address: str) -> dict[str, str]:
    path = address_of(address).path
    return {"table": path.name, "path": str(path)}
