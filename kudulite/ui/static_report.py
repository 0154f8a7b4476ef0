"""The report: all tables of a directory in one HTML file, with the templates of the pages.

The file has its style sheet in it and links to nothing else, so that it can be sent and kept.

**Threads**: any.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from markupsafe import Markup

from kudulite.client.client import Client
from kudulite.errors import KuduliteError, TableNotFoundError
from kudulite.tablet.maintenance_policy import ScoredOperation
from kudulite.ui.directory_view import DAMAGED, BackupPlace, TableSummary, directory_view
from kudulite.ui.open_directory import OpenDirectory, read_or_error
from kudulite.ui.rendering import rendered, style_sheet
from kudulite.ui.table_view import REASONS, TableView, table_view, waiting_operations

Waiting = list[tuple[str, ScoredOperation]] | KuduliteError


def report(
    client: Client,
    *,
    backups: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> str:
    """Return a report about the tables of a client's directory, as the text of one HTML file.

    `backups` and `storage_options` are as in `app`. A table that cannot be read is in it with what
    is wrong. Raises StorageError if the directory cannot be listed.
    """
    directory = OpenDirectory(client)
    place = None if backups is None else BackupPlace(backups, storage_options or {})
    view = directory_view(directory, place)
    tables = [found for each in view.tables if (found := _views(directory, each)) is not None]
    now = datetime.datetime.now(datetime.UTC)
    return rendered(
        "report.html",
        title="Report",
        view=view,
        tables=tables,
        made=f"{now:%Y-%m-%d %H:%M:%S} UTC",
        # The style sheet is the package's own, and has no text of a table.
        style=Markup(style_sheet()),
        reasons=REASONS,
    )


def _views(
    directory: OpenDirectory, summary: TableSummary
) -> tuple[str, TableView | KuduliteError, Waiting] | None:
    """Return the name of a table and what the report shows of it, None if it was deleted."""
    if summary.state == DAMAGED and summary.statistics is None:
        return summary.name, KuduliteError(summary.problem), []
    try:
        table = directory.table(summary.name)
        view = read_or_error(lambda: table_view(table))
        waiting = [] if isinstance(view, KuduliteError) else waiting_operations(table)
    except TableNotFoundError:
        return None
    return summary.name, view, waiting
