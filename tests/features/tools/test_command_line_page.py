"""docs/command_line.md: every command has a part with an example, which prints what it says."""

import re
from pathlib import Path

import pytest

from kudulite.tools.cli import PANELS
from tests.support.console import BLOCK, Console, abridged, steady, steps

PAGE = (Path(__file__).parents[3] / "docs" / "command_line.md").read_text()
COMMANDS = {
    place.partition(".")[2].replace("_", "-") for panel in PANELS.values() for place in panel
}


def test_each_command_has_a_part_with_an_example():
    """Under its own name; `list_tables` is the function of `list`."""
    parts = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    names = [part.partition("\n")[0] for part in parts]
    assert sorted(names) == sorted(COMMANDS - {"list-tables"} | {"list"})
    for name, part in zip(names, parts, strict=True):
        commands = [command for block in BLOCK.findall(part) for command, _ in steps(block)]
        assert any(command.startswith(f"kudulite {name} ") for command in commands), name


@pytest.mark.full
def test_the_commands_of_the_page_print_what_it_says(tmp_path):
    """`python -m tests.support.console docs/command_line.md` stores it again."""
    console = Console(tmp_path)
    for block in BLOCK.findall(PAGE):
        for command, expected in steps(block):
            printed = abridged(console.printed(command, expected), expected)
            assert steady(printed) == steady(expected), f"{command}\n{printed}"


def test_output_that_differs_is_found():
    """Sizes and moments may differ; what is left out on the page is not compared."""
    assert steady("a  12 B 2026-01-01T00:00:00Z") == steady("a 9.1 KiB  2027-01-01T00:00:01.5Z")
    assert steady("rows 3") != steady("rows 4")
    assert abridged("a\nb\nc\n", "x\n…\n") == "a\n…\n"
    assert abridged("a\nb\nc\nd\n", "x\n…\ny\n") == "a\n…\nd\n"
