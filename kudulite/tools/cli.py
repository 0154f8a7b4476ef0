"""The list of the commands of `kudulite`, and how they end.

A table is named by its folder, or by its address on an object store. `--json` prints one JSON value
instead of text. A command ends with status 1 after an error of the library, whose message it writes
to standard error, and after problems found by `check` or `doctor`. Wrong usage of the command line
ends it with status 2.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import kudulite
from kudulite.errors import KuduliteError
from kudulite.tools import (
    commands_backup,
    commands_directory,
    commands_import,
    commands_look,
    commands_measure,
    commands_table,
    commands_upkeep,
    commands_write,
)
from kudulite.tools.addresses import takes_storage_options

# Words of other tools, and words that people try, with what to type here.
OTHER_WORDS = {
    **dict.fromkeys(("statistics", "stats", "stat", "info", "show", "status"), "describe TABLE"),
    **dict.fromkeys(("ls", "tables", "show-tables"), "list DIRECTORY"),
    **dict.fromkeys(("select", "query", "cat", "read", "export", "head"), "scan TABLE"),
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
    "top": "watch TABLE",
}


class Commands(TyperGroup):
    """The commands; a word that is none of them gets the command that does the same."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that arguments begin with. Raises UsageError."""
        word = args[0]
        advice = OTHER_WORDS.get(word.lower())
        if advice is not None and word not in self.commands:
            ctx.fail(f"No such command {word!r}. Type: kudulite {advice}")
        return super().resolve_command(ctx, args)


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


PANELS = {
    "Tables": (
        commands_directory.list_tables,
        commands_look.describe,
        commands_look.partitions,
        commands_look.layout,
        commands_measure.schema,
        commands_table.create,
        commands_table.alter,
        commands_table.rename,
        commands_table.drop,
        commands_table.recall,
    ),
    "Rows": (
        commands_look.get,
        commands_measure.locate,
        commands_look.scan,
        commands_look.changes,
        commands_look.history,
        commands_write.load,
        commands_write.upsert,
        commands_write.delete,
    ),
    "The past": (
        commands_table.tag,
        commands_table.untag,
        commands_table.tags,
        commands_table.versions,
        commands_table.retention,
    ),
    "Maintenance": (
        commands_look.watch,
        commands_directory.metrics,
        commands_measure.sizes,
        commands_measure.perf,
        commands_upkeep.flush,
        commands_upkeep.compact,
        commands_upkeep.maintain,
        commands_upkeep.check,
        commands_look.dump,
        commands_upkeep.doctor,
        commands_write.loadgen,
    ),
    "Backups and copies": (
        commands_backup.backup,
        commands_backup.backups,
        commands_backup.restore,
        commands_upkeep.copy,
        commands_import.import_kudu,
    ),
}
for panel, commands in PANELS.items():
    for command in commands:
        is_list = command is commands_directory.list_tables
        name = "list" if is_list else command.__name__.replace("_", "-")
        app.command(name, rich_help_panel=panel)(takes_storage_options(command))


def run() -> int:
    """Run the command of this process, and return its exit status."""
    try:
        app()
    except KuduliteError as error:
        print(f"kudulite: {error}", file=sys.stderr)
        return 1
    return 0
