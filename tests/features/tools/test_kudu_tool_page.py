"""docs/kudu_tool.md: its commands run, and each that it names is one of ours."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support.command_line import output, value

PAGE = (Path(__file__).parents[3] / "docs" / "kudu_tool.md").read_text()
SESSION = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.mark.full
def test_the_commands_of_the_page_run(tmp_path):
    """In their order; then the soft-deleted table is recalled, and its log is dumped."""
    for line in SESSION.splitlines():
        program, *arguments = shlex.split(line.replace("/data", str(tmp_path)))
        assert program == "kudulite"
        output(*arguments)
    root = tmp_path / "warehouse"
    (soft,) = value("list", root, "--soft-deleted")
    output("recall", root, soft["id"])
    assert [table["name"] for table in value("list", root)] == [
        "events", "load", "restored", "whole",
    ]  # fmt: skip
    definition = tmp_path / "events.json"
    definition.write_text(output("schema", root / "events"))
    output("create", root / "again", "--definition", definition)
    for path in (*root.rglob("wal"), *root.rglob("rowset/*"), *root.rglob("superblock-*.json"),
                 *root.rglob("base-*.parquet"), *root.rglob("*.log")):  # fmt: skip
        output("dump", path)


def test_the_page_names_commands_that_there_are():
    """A command in the right column of a table is one of `kudulite --help`."""
    known = set(re.findall(r"^[│ ]*([a-z]+)  ", output("--help"), re.MULTILINE))
    rows = [line.split("|")[2] for line in PAGE.splitlines() if line.startswith("| `")]
    named = {code.split()[0] for row in rows for code in re.findall(r"`([a-z]+ [A-Z][^`]*)`", row)}
    assert len(named) > 15
    assert named - known == set()
