"""The `console` blocks of a document: commands of `kudulite` with what they print.

    python -m tests.support.console docs/command_line.md      store what the commands print now

The blocks of a document share a directory. `$ cat FILE` shows a file, which is written before it is
read. A line `…` stands for lines that are left out.
"""

import re
import shlex
import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner

from kudulite.tools.cli import app

BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
_STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_ID = re.compile(r"\b[0-9a-f]{32}\b")
_WRITER = re.compile(r"\b\w+@[\w.-]+:\d+")
# The parts that differ from run to run: moments, HybridTimes, ids, names of backups; sizes, seconds
# and rates; and what `doctor` finds about the kind of a file system.
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)(?:\+\d+)?"
    r"|\b7\d{18}\b|\b\d{8}T\d{6}\.\d{6}Z-\d{4}|\b[0-9a-f]{32}\b"
    r"|\b\d+(?:\.\d+)? (?:[KMG]i)?B\b|\b\d{1,3}(?:,\d{3})+(?:\.\d+)?|\b\d{4,}\b"
    r"|\bok +\d+\.\d+|\d+\.\d+ ms\b|\b\w*seconds\w* +[\d.,]+|\d\.\d{4,} +\d+$"
    r"|^\w+ +kind .*|\(\w+\): safe .*",
    re.MULTILINE,
)


class Console:
    """A place with the directories that the commands of a document name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: dict[str, str] = {}

    def printed(self, command: str, expected: str) -> str:
        """Run a command; what it prints. The ids that it prints stand for those expected."""
        program, *arguments = [self._here(word) for word in shlex.split(command)]
        if program == "cat":
            (self._folder / arguments[0]).write_text(expected)
            return expected
        assert program == "kudulite", command
        if arguments[0] == "import-kudu":
            self._export("/data/warehouse/metrics", "/shared/exports/metrics")
        with chdir(self._folder):
            result = CliRunner().invoke(app, arguments)
        error = result.exception
        shown = result.output if isinstance(error, SystemExit | None) else f"kudulite: {error}\n"
        self._ids |= zip(_ID.findall(expected), _ID.findall(shown), strict=False)
        shown = _WRITER.sub("ada@laptop:4711", shown.replace(f"{self._folder}/", "/"))
        return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())

    def with_ids(self, command: str) -> str:
        """A command with the ids of now."""
        return _ID.sub(lambda found: self._ids.get(found[0], found[0]), command)

    def _export(self, table: str, target: str) -> None:
        """Export a table as examples/import_from_kudu.py exports one of Kudu."""
        path, export = self._here(table), Path(self._here(target))
        for folder in ("data", "definition"):
            (export / folder).mkdir(parents=True)
        definition = CliRunner().invoke(app, ["schema", path]).stdout
        (export / "definition" / "part-00000").write_text(definition)
        rows = export / "data" / "part-00000.parquet"
        CliRunner().invoke(app, ["scan", path, "--format", "parquet", "--output", str(rows)])

    def _here(self, word: str) -> str:
        word = self.with_ids(word)
        return f"{self._folder}{word}" if word.startswith("/") else word


def steps(block: str) -> list[tuple[str, str]]:
    """The commands of a block with what they print."""
    return _STEP.findall(block)


def abridged(printed: str, expected: str) -> str:
    """Leave out of what was printed what is left out of the expected lines."""
    lines, kept = printed.splitlines(keepends=True), expected.splitlines(keepends=True)
    if "…\n" not in kept:
        return printed
    at = kept.index("…\n")
    return "".join([*lines[:at], "…\n", *lines[len(lines) - (len(kept) - at - 1) :]])


def steady(printed: str) -> list[str]:
    """The words of what was printed, without what differs from run to run."""
    return _VARYING.sub("~", printed).split()


def main(path: Path) -> None:
    """Store in a document what its commands print."""
    with tempfile.TemporaryDirectory() as folder:
        console = Console(Path(folder).resolve())

        def again(block: re.Match[str]) -> str:
            text = ""
            for command, expected in steps(block[1]):
                printed = abridged(console.printed(command, expected), expected)
                text += f"$ {console.with_ids(command)}\n{printed}"
            return text

        path.write_text(BLOCK.sub(again, path.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
