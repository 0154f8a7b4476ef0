"""The command `kudulite sql`: one query, or a shell that reads queries line by line.

    kudulite sql /data/warehouse "SELECT …"      prints the rows, as `scan` does
    kudulite sql /data/warehouse                 sql> SELECT …        until a semicolon
                                            ...>   FROM metrics;
    kudulite sql /data/warehouse < queries.sql   runs the queries, and ends with the first error

The shell keeps its history in ~/.kudulite_history. Ctrl-C ends a query or drops what was typed,
Ctrl-D ends the shell.
"""

from __future__ import annotations

import code
import contextlib
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

import kudulite
from kudulite.errors import KuduliteError, OptionError
from kudulite.tools.addresses import check_is_directory, connect
from kudulite.tools.commands_look import AtMoment
from kudulite.tools.output import Format, OutputFile, RowFormat, write_rows

HISTORY_FILE = Path("~/.kudulite_history")
_HISTORY_LINES = 1000
_COMMANDS = {
    ".tables": "list the tables",
    ".schema TABLE": "show the columns and the key of a table",
    ".help": "show this list",
    ".quit": "end the shell, as Ctrl-D does",
}
# Characters that begin a new word for completion.
_DELIMITERS = " \t\n,;()=<>+-*/'\""


def sql(
    root: Annotated[
        str, typer.Argument(metavar="ROOT", help="A directory of tables, or s3://bucket/prefix.")
    ],
    query: Annotated[str | None, typer.Argument(help="One SELECT; a shell without it.")] = None,
    at: AtMoment = None,
    row_format: Format = RowFormat.TABLE,
    output: OutputFile = None,
) -> None:
    """Query the tables of a directory in SQL, with DuckDB; it only reads."""
    check_is_directory(root)
    client = connect(root)
    if query is not None:
        _print_result(client.sql(query, at), row_format, output)
        return
    if output is not None:
        raise OptionError("--output needs a query; the shell prints to standard output")
    _Shell(client, at, row_format).run()


def _print_result(result: kudulite.SqlResult, row_format: RowFormat, output: str | None) -> None:
    # CSV and Parquet are written while the query runs; sums are decimals there.
    is_streamed = row_format in (RowFormat.CSV, RowFormat.PARQUET)
    reader = result.to_reader() if is_streamed else result.to_arrow().to_reader()
    write_rows(reader, row_format, output, "query")


class _Shell(code.InteractiveConsole):
    """Reads lines until a statement is complete, and runs it."""

    def __init__(self, client: kudulite.Client, at: str | None, row_format: RowFormat) -> None:
        super().__init__()
        self._client = client
        self._at = at
        self._format = row_format
        self._is_terminal = sys.stdin.isatty()
        found = client.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()
        self._keywords = [keyword.upper() for (keyword,) in found]

    def run(self) -> None:
        """Run until the end of the input. Without a terminal, raises the first error."""
        banner = f"{self._client.root}; end a query with a semicolon; .help lists the commands"
        with contextlib.suppress(SystemExit), self._line_editing():
            self.interact(banner if self._is_terminal else "", "")
            if self.buffer and not self._is_terminal:
                self._run_query("\n".join(self.buffer))

    def write(self, data: str) -> None:
        """Write what the console says, which is nothing without a terminal."""
        if self._is_terminal:
            super().write(data)

    def raw_input(self, prompt: str = "") -> str:
        """Read a line."""
        prompt = "...> " if self.buffer else "sql> "
        return super().raw_input(prompt if self._is_terminal else "")

    def runsource(self, source: str, filename: str = "", symbol: str = "") -> bool:
        """Run a statement or a command; return whether more lines belong to it."""
        text = source.strip()
        if text and not text.startswith(".") and not sqlite3.complete_statement(text):
            return True
        try:
            if text.startswith("."):
                self._run_command(text)
            elif text.strip("; \n\t"):
                self._run_query(text)
        except KuduliteError as error:
            if not self._is_terminal:
                raise
            print(f"kudulite: {error}", file=sys.stderr)
        return False

    def _run_query(self, text: str) -> None:
        result = self._client.sql(text, self._at)
        if self._is_terminal and self._format == RowFormat.TABLE:
            result.show()  # the first and the last rows
        else:
            _print_result(result, self._format, None)

    def _run_command(self, text: str) -> None:
        command, *words = text.rstrip("; ").split(maxsplit=1)
        if command == ".quit":
            raise SystemExit
        if command == ".tables":
            print("\n".join(self._client.list_tables()))
        elif command == ".schema" and words:
            print(self._client.table(words[0].strip('"')).schema)
        elif command == ".help":
            print("\n".join(f"{name:<14}  {effect}" for name, effect in _COMMANDS.items()))
        else:
            raise OptionError(f"{text!r} is no command; known: {', '.join(_COMMANDS)}")

    @contextlib.contextmanager
    def _line_editing(self) -> Iterator[None]:
        """Let a terminal have history and completion, where Python has readline."""
        try:
            import readline
        except ImportError:
            readline = None  # type: ignore[assignment]
        if readline is None or not self._is_terminal:
            yield
            return
        file = HISTORY_FILE.expanduser()
        with contextlib.suppress(OSError):
            readline.read_history_file(file)
        readline.set_history_length(_HISTORY_LINES)
        readline.set_completer_delims(_DELIMITERS)
        readline.set_completer(self.complete)
        readline.parse_and_bind("tab: complete")
        try:
            yield
        finally:
            readline.set_completer(None)
            with contextlib.suppress(OSError):
                readline.write_history_file(file)

    def complete(self, text: str, state: int) -> str | None:
        """Return the `state`th word that begins with a text.

        A command after a dot, else a table or a column, else a keyword.
        """
        owner, dot, start = text.rpartition(".")
        if dot and not owner:
            found = [name.split()[0] for name in _COMMANDS if name.startswith(text)]
        else:
            found = _beginning(start, self._names()) or _beginning(start, self._keywords)
            found = [f"{owner}{dot}{word}" for word in found]
        return found[state] if state < len(found) else None

    def _names(self) -> Iterator[str]:
        for name in self._client.list_tables():
            yield name
            with contextlib.suppress(KuduliteError):  # damaged, or deleted meanwhile
                yield from self._client.table(name).columns


def _beginning(start: str, words: Iterable[str]) -> list[str]:
    found = (word for word in words if word.lower().startswith(start.lower()))
    return list(dict.fromkeys(found))
