"""The list of the commands of `kudulite`, and how they end.

A table is named by its folder, or by its address on an object store. `--json` prints one JSON value
instead of text. A command ends with status 1 after an error of the library, whose message it writes
to standard error, and after problems found by `check` or `doctor`. Wrong usage of the command line
ends it with status 2.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import kudulite
from kudulite.errors import KuduliteError

# Words of other tools, and words that people try, with what to type here.
OTHER_WORDS = {
    **dict.fromkeys(("statistics", "stats", "stat", "info", "show", "status"), "describe TABLE"),
    **dict.fromkeys(("ls", "tables", "show-tables"), "list DIRECTORY"),
    **dict.fromkeys(("cat", "read", "export", "head"), "scan TABLE"),
    **dict.fromkeys(("insert", "import", "write", "append"), "load TABLE FILE"),
    **dict.fromkeys(("merge", "update"), "upsert TABLE FILE"),
    **dict.fromkeys(("diff", "cdc"), "changes TABLE START"),
    **dict.fromkeys(("log", "commits", "snapshots"), "versions TABLE"),
    **dict.fromkeys(("ksck", "fsck", "verify", "validate", "scrub"), "check TABLE"),
    **dict.fromkeys(("vacuum", "gc", "cleanup", "clean", "expire"), "maintain TABLE"),
    **dict.fromkeys(("optimize", "rewrite"), "compact TABLE"),
    **dict.fromkeys(("du", "size", "columns"), "sizes TABLE"),
    **dict.fromkeys(("rm", "remove", "delete-table"), "drop TABLE"),
    **dict.fromkeys(("mv", "move"), "rename TABLE NAME"),
    **dict.fromkeys(("cp", "clone"), "copy TABLE TARGET"),
    **dict.fromkeys(("undrop", "undelete"), "recall DIRECTORY ID"),
    **dict.fromkeys(("undo", "rollback", "revert"), "restore TABLE --to MOMENT"),
    **dict.fromkeys(("benchmark", "bench"), "loadgen TABLE"),
    **dict.fromkeys(("prometheus", "openmetrics"), "metrics DIRECTORY"),
    **dict.fromkeys(("definition", "ddl"), "schema TABLE"),
    **dict.fromkeys(("select", "query"), 'sql DIRECTORY "SELECT …"'),
    "top": "watch TABLE",
}


class Commands(TyperGroup):
    """The commands; a word that is none of them gets the command that does the same.

    A command is imported when it is run or completed, so that `--help` is fast.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that arguments begin with. Raises UsageError."""
        word = args[0]
        advice = OTHER_WORDS.get(word.lower())
        if advice is not None and word not in self.commands:
            ctx.fail(f"No such command {word!r}. Type: kudulite {advice}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else loaded(name), rest


app = typer.Typer(
    cls=Commands,
    help="Inspect kudulite tables, write to them, maintain them, and back them up.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(is_asked: bool) -> None:
    """Print the version and end, before a command is looked for."""
    if is_asked:
        print(f"kudulite {kudulite.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


# Each command by its panel, with the first paragraph of its docstring, which `--help` shows.
PANELS = {
    "Tables": {
        "commands_directory.list_tables": (
            "List the tables of a directory; status 1 if one of them is damaged."
        ),
        "commands_look.describe": "Show a table's columns, its partitions, and its statistics.",
        "commands_look.partitions": (
            "List a table's tablets: the partition of each, its rows, rowsets and bytes."
        ),
        "commands_look.layout": "Draw the rowsets of each tablet over its key space.",
        "commands_ui.ui": (
            "Show the tables of a directory in the browser, until Ctrl-C; it only reads."
        ),
        "commands_ui.report": ("Write the pages about the tables of a directory to one HTML file."),
        "commands_measure.schema": (
            "Print the definition of a table as JSON, in the form that `kudu table create` takes."
        ),
        "commands_table.create": (
            "Create an empty table with the columns given, those of a data file, or by a "
            "definition."
        ),
        "commands_table.alter": (
            "Drop, rename, add and change columns and ranges, owner and comment, in one new "
            "version."
        ),
        "commands_table.rename": "Rename a table in its directory, with its folder.",
        "commands_table.drop": "Delete a table with all its history; asks first.",
        "commands_table.recall": "Bring a table back that was dropped with --reserve.",
    },
    "Rows": {
        "commands_look.get": "Print one row by its primary key; status 1 if there is none.",
        "commands_measure.locate": (
            "Print the tablet that a primary key belongs to, and whether it has such a row."
        ),
        "commands_look.scan": "Print the rows of a table that meet a condition, at a moment.",
        "commands_sql.sql": "Query the tables of a directory in SQL, with DuckDB; it only reads.",
        "commands_look.changes": (
            "Print what changed in a table between two moments, one change of each key."
        ),
        "commands_look.history": "Print every version of a row that is kept, the oldest first.",
        "commands_write.load": (
            "Insert the rows of files, all or none; an existing key is an error."
        ),
        "commands_write.upsert": (
            "Insert the rows of files, or update the rows with existing keys, all or none."
        ),
        "commands_write.delete": (
            "Delete the rows whose keys are in files, all or none; other columns are ignored."
        ),
    },
    "The past": {
        "commands_table.tag": "Name a moment; it stays readable past the retention until `untag`.",
        "commands_table.untag": (
            "Delete a tag, so that history older than the retention may be removed."
        ),
        "commands_table.tags": "List the tags of a table, the oldest moment first.",
        "commands_table.versions": (
            "List the newest versions of a table, newest first: when, by what, whom, and how many "
            "rows."
        ),
        "commands_table.retention": (
            "Show for how long the past of a table stays readable, or set it."
        ),
    },
    "Maintenance": {
        "commands_look.watch": "Show the statistics of a table again and again, until Ctrl-C.",
        "commands_directory.metrics": (
            "Print the statistics of tables as OpenMetrics text, as Prometheus reads it."
        ),
        "commands_measure.sizes": (
            "Show what each column takes on disk, its nulls and its range, and what else takes "
            "room."
        ),
        "commands_measure.perf": (
            "Read each tablet, and show how many rows and bytes it gave and how long that took."
        ),
        "commands_upkeep.flush": "Flush rows in memory, which are in the log, to files of tables.",
        "commands_upkeep.compact": "Compact a table completely, at any cost.",
        "commands_upkeep.maintain": (
            "Flush, compact where it pays, drop old history, and remove files that are not needed."
        ),
        "commands_upkeep.check": (
            "Read whole tables and compare their files with the metadata; status 1 for problems."
        ),
        "commands_look.dump": (
            "Show the content of a table's files: versions, rowsets, base data, deltas, logs, "
            "locks."
        ),
        "commands_upkeep.doctor": (
            "Check whether a file system or an object store is safe for tables; status 1 if not."
        ),
        "commands_write.loadgen": (
            "Write random rows for a while and report the rate; makes the table if there is none."
        ),
    },
    "Backups and copies": {
        "commands_backup.backup": (
            "Back up a table, or continue an interrupted backup; or many tables, each to SET/TABLE."
        ),
        "commands_backup.backups": (
            "List the backups of a set, the oldest first, or the sets of a directory."
        ),
        "commands_backup.restore": (
            "Restore a table from its backups, or bring a table back to its past; or many tables."
        ),
        "commands_upkeep.copy": (
            "Copy a table as of one moment, with its whole past or only present rows, or into "
            "another."
        ),
        "commands_import.import_kudu": (
            "Make tables of the export of a Kudu cluster, with columns, keys, partitions and rows."
        ),
    },
}


def _name_of(place: str) -> str:
    """Return the name of the command in `module.function`."""
    return place.partition(".")[2].removesuffix("_tables").replace("_", "-")


_PLACES = {_name_of(place): place for commands in PANELS.values() for place in commands}


def loaded(name: str) -> Any:
    """Return a command with its parameters; its module is imported here."""
    # Imported here, because it imports tables.
    from kudulite.tools.addresses import takes_storage_options

    module, _, function = _PLACES[name].partition(".")
    command = getattr(importlib.import_module(f"kudulite.tools.{module}"), function)
    alone = typer.Typer(add_completion=False)
    alone.command(name)(takes_storage_options(command))
    return typer.main.get_command(alone)


def _not_loaded() -> None:
    raise AssertionError("`Commands` runs the command itself")


for panel, commands in PANELS.items():
    for place, summary in commands.items():
        app.command(_name_of(place), help=summary, rich_help_panel=panel)(_not_loaded)


def run() -> int:
    """Run the command of this process, and return its exit status."""
    try:
        app()
    except KuduliteError as error:
        print(f"kudulite: {error}", file=sys.stderr)
        return 1
    return 0
