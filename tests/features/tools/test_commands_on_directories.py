"""Commands on a directory of tables, of which one is damaged, one neglected, and one in use."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import kudulite
from kudulite.errors import StorageError
from kudulite.table.environment import Environment
from kudulite.tools import choice
from kudulite.tools.choice import Choice
from kudulite.tools.cli import app
from kudulite.tools.outcomes import State, outcomes_in_processes
from kudulite.upkeep.maintenance import maintenance_lock
from tests.support.command_line import error, output, value
from tests.support.object_server import ObjectServer
from tests.support.other_user import as_reader
from tests.support.tables.core_tables import stored
from tests.support.tables.kudu_export import export
from tests.support.tiers import tiered

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
SAMPLE = re.compile(r'(kudulite_\w+)(\{(?:\w+="(?:[^"\\\n]|\\.)*"(?:,|(?=\})))+\})? (-?[\d.e+-]+)')


@dataclass
class Warehouse:
    """A directory of tables: `damaged` has no manifest, `behind` many rowsets, `busy` a writer."""

    root: Path
    count: int
    names: list[str] = field(init=False)

    damaged, behind, busy = "tab_01", "tab_02", "tab_03"

    def __post_init__(self) -> None:
        self.names = [f"tab_{number:02}" for number in range(self.count)]

    @property
    def healthy(self) -> list[str]:
        """The names of all tables but the damaged one."""
        return [name for name in self.names if name != self.damaged]

    def table(self, name: str) -> kudulite.Table:
        """One of the tables."""
        return kudulite.open_table(self.root / name)

    def fill(self) -> None:
        """Create the tables, each with a row for each key below 10 in files, and one in the log."""
        client = kudulite.connect(self.root, background_maintenance=False)
        for name in self.names:
            made = client.create_table(name, SCHEMA, primary_key="k")
            bulk(made, range(10))
            made.upsert([{"k": 10, "v": name}])
        behind = client.table(self.behind)
        for number in range(12):  # each over all keys, so that all overlap
            bulk(behind, range(number, 1000, 12))
        shutil.rmtree(self.root / self.damaged / "manifest")

    def hold(self, stack: ExitStack) -> None:
        """Have the busy table maintained, and written to, as long as the stack is open."""
        table = self.table(self.busy)
        entry = table._store.newest().tablets[0]
        assert stack.enter_context(maintenance_lock(table._store, entry.id))
        write = table.new_bulk_write("upsert")
        stack.callback(write.commit, [write.stage([pa.table({"k": [11], "v": ["b"]}, SCHEMA)])])


def bulk(table: kudulite.Table, keys: range) -> None:
    """Write rows as files."""
    write = table.new_bulk_write("upsert")
    rows = pa.table({"k": keys, "v": ["x" * 50] * len(keys)}, SCHEMA)
    write.commit([write.stage([rows])])
    table.flush()


@pytest.fixture
def warehouse(tmp_path: Path, count: int) -> Iterator[Warehouse]:
    """A directory of so many tables, in use."""
    made = Warehouse(tmp_path / "wh", count)
    made.fill()
    with ExitStack() as stack:
        made.hold(stack)
        yield made


sized = tiered("count", [5, 50], quick=1)


def run(*arguments: object) -> Result:
    """A command that must not end with an error of the program, nor warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Warning" not in result.output
    return result


def rows_of(command: str, warehouse: Warehouse, *arguments: object) -> dict[str, dict]:
    """The results of a command on all tables, by their names; it must end with status 1."""
    result = run(command, warehouse.root, *arguments, "--json")
    assert result.exit_code == 1
    found = {row["table"]: row for row in json.loads(result.stdout)}
    assert list(found) == warehouse.names
    states = {name: row["state"] for name, row in found.items()}
    healthy = dict.fromkeys(warehouse.healthy, "ok")
    assert states == {**healthy, warehouse.damaged: "damaged"}
    damaged = found.pop(warehouse.damaged)
    assert damaged["result"] is None and "without its manifest" in damaged["error"]
    assert f"kudulite: {warehouse.root / warehouse.damaged}: " in result.stderr
    return {name: row["result"] for name, row in found.items()}


@sized
def test_check_maintain_and_flush_do_all_tables_that_are_whole(warehouse: Warehouse):
    """The neglected one is compacted, the one in use is left to its maintainer."""
    reports = rows_of("check", warehouse)
    assert all(report["problems"] == [] for report in reports.values())
    assert reports[warehouse.healthy[0]]["row_count"] == 11
    assert warehouse.table(warehouse.behind).statistics.rowset_height > 8
    flushed = rows_of("flush", warehouse, "--processes", 1)
    counts = {name: found["flushed_tablet_count"] for name, found in flushed.items()}
    assert counts == {**dict.fromkeys(warehouse.healthy, 1), warehouse.behind: 0}
    done = rows_of("maintain", warehouse, "--processes", 3)
    assert warehouse.table(warehouse.behind).statistics.rowset_height <= 1
    busy = {name for name, found in done.items() if found["busy_tablet_ids"]}
    assert busy <= {warehouse.busy}
    for name in warehouse.healthy:
        warehouse.table(name).check().raise_if_bad()
        expected = 1000 if name == warehouse.behind else 11
        assert len(warehouse.table(name)) == expected
        assert warehouse.table(name).statistics.unflushed_row_count == 0


@sized
def test_sizes_and_metrics_have_all_tables_that_are_whole(warehouse: Warehouse):
    """The damaged one is a row, and a sample; the text is OpenMetrics all the same."""
    sizes = rows_of("sizes", warehouse)
    for name, found in sizes.items():
        assert found == value("sizes", warehouse.root / name)
    result = run("metrics", warehouse.root)
    assert result.exit_code == 1 and warehouse.damaged in result.stderr
    samples = parsed(result.stdout)
    assert samples["kudulite_tables_unreadable"] == {"": 1.0}
    readable = samples["kudulite_table_readable"]
    assert Counter(readable.values()) == {1.0: len(warehouse.healthy), 0.0: 1}
    assert [labels for labels, is_readable in readable.items() if not is_readable] == [
        f'{{table="{warehouse.damaged}",path="{warehouse.root / warehouse.damaged}"}}'
    ]
    live = samples["kudulite_table_live_row_count"]
    assert Counter(live.values())[11.0] == len(warehouse.healthy) - 1
    again = run("metrics", warehouse.root, "--processes", 2)
    assert parsed(again.stdout).keys() == samples.keys()


def parsed(text: str) -> dict[str, dict[str, float]]:
    """The samples of an OpenMetrics text by family and labels, checked against its grammar."""
    *lines, end, rest = text.split("\n")
    assert (end, rest) == ("# EOF", "")
    found: dict[str, dict[str, float]] = {}
    family = ""
    for line in lines:
        if line.startswith("# "):
            _, word, name, content = line.split(" ", 3)
            if word == "TYPE":
                assert name not in found and content == "gauge"
                found[family := name] = {}
            assert name == family and word in ("TYPE", "UNIT", "HELP") and content
            assert word != "UNIT" or name.endswith(f"_{content}")
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample and sample[1] == family, line
        labels = sample[2] or ""
        assert labels not in found[family], f"two samples of {family}{labels}"
        found[family][labels] = float(sample[3])
    return found


@sized
def test_list_has_a_row_for_each_table_and_marks_the_damaged_one(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
):
    """With what is in the log; the long form says who needs upkeep, and when rows were written."""
    for flags in ([], ["--long"]):
        result = run("list", warehouse.root, *flags)
        assert result.exit_code == 1 and "without its manifest" in result.stderr
        lines = result.stdout.splitlines()[1:]
        assert [line.split()[0] for line in lines] == warehouse.names
        assert [line for line in lines if "damaged" in line] == [lines[1]]
    result = run("list", warehouse.root, "--long", "--json")
    found = {row["name"]: row for row in json.loads(result.stdout)}
    assert found[warehouse.damaged]["state"] == "damaged"
    assert found[warehouse.damaged]["rows"] is None
    levels = {name: found[name]["upkeep"] for name in warehouse.healthy}
    assert levels == {**dict.fromkeys(warehouse.healthy, "good"), warehouse.behind: "act"}
    (advice, *_) = found[warehouse.behind]["advice"]
    assert advice["figure"] == "rowset_height"
    assert advice["command"] == f"kudulite maintain {warehouse.root / warehouse.behind}"
    for name, given in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, given)
    red = [line for line in run("list", warehouse.root).stdout.splitlines() if "\x1b[31m" in line]
    assert len(red) == 1 and warehouse.damaged in red[0]
    first = found[warehouse.healthy[0]]
    assert first["unflushed_rows"] == 1 and first["log_bytes"] > 0
    table = warehouse.table(warehouse.healthy[0])
    written = table.upsert([{"k": 12, "v": "z"}]).timestamp
    table.maintain()
    assert table.statistics.last_write == written


@sized
def test_backup_and_restore_do_all_tables_that_are_whole(warehouse: Warehouse, tmp_path: Path):
    """Each has a set of its own; the restored tables have the same rows."""
    sets, again = tmp_path / "sets", tmp_path / "again"
    made = rows_of("backup", warehouse, sets)
    assert {found["kind"] for found in made.values()} == {"full"}
    assert sorted(path.name for path in sets.iterdir()) == warehouse.healthy
    assert {found["kind"] for found in rows_of("backup", warehouse, sets).values()} == {
        "incremental"
    }
    listed = value("backups", sets, "--verify")
    assert [(row["set"], row["result"]["backups"]) for row in listed] == [
        (name, 2) for name in warehouse.healthy
    ]
    restored = value("restore", sets, again)
    assert [row["state"] for row in restored] == ["ok"] * len(warehouse.healthy)
    for name in warehouse.healthy:
        assert stored(kudulite.open_table(again / name)) == stored(warehouse.table(name))
    ages = {
        row["name"]: row["backup"]
        for row in json.loads(
            run("list", warehouse.root, "--long", "--backups", sets, "--json").stdout
        )
    }
    assert ages.pop(warehouse.damaged) is None and all(ages.values())
    result = run("restore", sets, again, "--json")
    assert result.exit_code == 1 and "overwrite" in result.stderr
    assert {row["state"] for row in json.loads(result.stdout)} == {"failed"}


# -- which tables


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory of three tables, and of what is no table."""
    client = kudulite.connect(tmp_path / "wh", background_maintenance=False)
    for name in ("a_1", "a_2", "b"):
        bulk(client.create_table(name, SCHEMA, primary_key="k"), range(3))
    (tmp_path / "wh" / "notes.txt").write_text("")
    (tmp_path / "wh" / "lost+found").mkdir()
    return tmp_path / "wh"


def tables_of(*arguments: object, command: str = "check") -> list[str]:
    """The names of the tables that a command did."""
    return [row["table"] for row in value(command, *arguments)]


def test_tables_are_named_by_a_directory_a_pattern_or_one_by_one(root: Path):
    """Each is done once, in the order of the arguments; what is no table is left out."""
    assert tables_of(root) == tables_of(f"{root}/") == tables_of(root / "*") == ["a_1", "a_2", "b"]
    assert tables_of(root / "a_*") == tables_of(root / "a_[12]") == ["a_1", "a_2"]
    assert tables_of(root / "b", root / "a_1", root) == ["b", "a_1", "a_2"]
    assert tables_of(root / "b*") == ["b"]  # a pattern is many, however many there are
    assert value("check", root / "b")["row_count"] == 3
    assert "no table in" in error("check", root / "c*")
    assert "there are a_1, a_2, b" in error("check", root / "c*")
    result = run("check", root / "b", root / "notes.txt", "--json")
    assert result.exit_code == 1
    assert [row["state"] for row in json.loads(result.stdout)] == ["ok", "failed"]


def test_a_table_whose_name_looks_like_a_pattern_is_that_table(root: Path):
    """A name may have any letter."""
    client = kudulite.connect(root, background_maintenance=False)
    client.create_table("a_[12]", SCHEMA, primary_key="k")
    assert value("check", root / "a_[12]")["row_count"] == 0
    assert tables_of(root / "a_*") == ["a_1", "a_2", "a_[12]"]


def test_two_directories_with_tables_of_one_name_are_told_apart(root: Path, tmp_path: Path):
    """The rows have whole addresses; such tables get no backups in one directory."""
    shutil.copytree(root, tmp_path / "other")
    names = tables_of(root, tmp_path / "other")
    assert names == [f"{place}/{name}" for place in (root, tmp_path / "other") for name in
                     ("a_1", "a_2", "b")]  # fmt: skip
    refusal = error("backup", root, tmp_path / "other", tmp_path / "sets")
    assert "several tables are named a_1, a_2, b" in refusal
    assert not (tmp_path / "sets").exists()


def test_a_folder_that_one_may_not_list_is_a_row_but_for_that_of_fsck(root: Path):
    """A table may be in it; `lost+found` is at the top of every ext4 file system."""
    # Not `tmp_path`, because the folders above it are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        place = Path(shutil.copytree(root, Path(name) / "wh"))
        for path in (place.parent, place, *place.rglob("*")):
            path.chmod(0o755)
        for closed in ("lost+found", "b"):
            (place / closed).chmod(0)
        states = as_reader(lambda: [row["state"] for row in json.loads(listed(place))])
        assert states == ["ok", "ok", "failed"]


def listed(root: Path) -> str:
    """The list of a directory of which a table cannot be read, as JSON."""
    result = run("list", root, "--json")
    assert result.exit_code == 1
    return result.stdout


@pytest.mark.parametrize("command", ["check", "sizes", "list", "metrics"])
def test_a_table_that_is_deleted_meanwhile_is_no_failure(
    command: str, root: Path, monkeypatch: pytest.MonkeyPatch
):
    """It was listed a moment ago; a table that is named by itself must be there."""
    monkeypatch.setattr(choice, "list_tables", lambda *_: dict.fromkeys(["a_1", "gone", "b"]))
    result = run(command, root, *([] if command == "metrics" else ["--json"]))
    assert (result.exit_code, result.stderr) == (0, "")
    if command in ("check", "sizes"):
        states = {row["table"]: row["state"] for row in json.loads(result.stdout)}
        assert states == {"a_1": "ok", "gone": "deleted", "b": "ok"}
    else:
        assert "a_1" in result.stdout and "gone" not in result.stdout
    if command != "list":
        assert run(command, root / "b", root / "gone").exit_code == 1


def test_an_argument_that_cannot_be_looked_at_fails_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a store that does not answer, beside a directory."""
    real = choice.list_tables

    def listed_or_not(environment: Environment, place: Path) -> object:
        if place.name == "far":
            raise StorageError(errno.EIO, "no answer")
        return real(environment, place)

    monkeypatch.setattr(choice, "list_tables", listed_or_not)
    (root.parent / "far").mkdir()
    result = run("check", root.parent / "far", root, "--json")
    assert result.exit_code == 1
    states = {row["table"]: row["state"] for row in json.loads(result.stdout)}
    assert states == {"far": "failed", "a_1": "ok", "a_2": "ok", "b": "ok"}


def test_a_set_and_a_directory_of_sets_are_not_mixed_up(root: Path, tmp_path: Path):
    """A shell that expands a pattern to one table must not make a set among sets."""
    sets = tmp_path / "sets"
    output("backup", root, sets)
    assert "is a directory of backup sets" in error("backup", root / "b", sets)
    assert "is the backup set of one table" in error("backup", root, sets / "b")
    assert "is a table; give the directory" in error("restore", sets, root / "b")
    (row,) = value("restore", sets / "a_1*", tmp_path / "again")
    assert row["set"] == "a_1"
    assert "there are a_1, a_2, b" in error("backups", sets / "x*")
    kudulite.open_table(root / "b").upsert([{"k": 3, "v": ""}])
    assert "restore takes tables only" in error(
        "restore", sets / "b", root / "b", "--to", "2026-01-01"
    )
    assert len(kudulite.open_table(root / "b")) == 4


def test_tables_are_brought_back_to_a_moment_together(root: Path):
    """Each has its own past; a number of a version is of one table."""
    moment = kudulite.open_table(root / "b").current_timestamp()
    for name in ("a_1", "b"):
        kudulite.open_table(root / name).delete([{"k": 1}])
    result = run("restore", root, "--to", moment, "--json")
    counts = {row["table"]: (row["result"] or {}).get("inserted") for row in
              json.loads(result.stdout)}  # fmt: skip
    assert counts == {"a_1": 1, "a_2": 0, "b": 1}
    assert "--version is of one table" in error("restore", root, "--version", 2)


@pytest.mark.parametrize("command", ["check", "sizes", "maintain"])
def test_a_file_that_is_missing_is_damage(command: str, root: Path):
    """Whichever command finds it, as in `check` of one table."""
    shutil.rmtree(root / "a_2" / "tablet")
    result = run(command, root, "--json")
    assert result.exit_code == 1
    assert [row["state"] for row in json.loads(result.stdout)] == ["ok", "damaged", "ok"]
    assert "it does not exist" in result.stderr


def test_damage_that_check_finds_is_status_1_and_damaged_backups_are_told(
    root: Path, tmp_path: Path
):
    """Files that were changed, of one table and of one set."""
    output("backup", root, tmp_path / "sets")
    for folder in (root / "a_2", tmp_path / "sets" / "b"):
        file = next(folder.rglob("*.parquet"))
        file.write_bytes(b"x" + file.read_bytes()[1:])
    result = run("check", root)
    assert result.exit_code == 1
    assert [line.split()[1] for line in result.stdout.splitlines()[1:4]] == ["ok", "damaged", "ok"]
    assert f"kudulite: {root / 'a_2'}: 1 problem:" in result.stderr
    assert str(next((root / "a_2").rglob("*.parquet"))) in result.stderr
    result = run("backups", tmp_path / "sets", "--verify", "--json")
    assert result.exit_code == 1
    states = {row["set"]: row["state"] for row in json.loads(result.stdout)}
    assert states == {"a_1": "ok", "a_2": "ok", "b": "damaged"}
    manifest = next((tmp_path / "sets" / "a_1").rglob("manifest.json"))
    manifest.write_text("{}")
    result = run("list", root, "--long", "--backups", tmp_path / "sets")
    assert result.exit_code == 1 and str(manifest) in result.stderr


# -- processes


def end_of_a_process(address: str) -> str:
    """Work on a table, in which the system kills the process for one of them."""
    if address.endswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if address.endswith("bug"):
        raise ZeroDivisionError("of a program")
    return address


def test_a_process_that_is_killed_is_the_result_of_its_table_alone():
    """Another process takes its place; so an error of the program is a result."""
    addresses = ["/a", "/killed", "/b", "/bug", "/c", "/killed"]
    for processes in (1, 2):
        found = outcomes_in_processes(end_of_a_process, Choice(addresses), "test", processes)
        assert [outcome.address for outcome in found] == addresses
        assert [outcome.result for outcome in found] == ["/a", None, "/b", None, "/c", None]
        assert "was killed, perhaps because no memory" in (found[1].error or "")
        assert found[3].error == "ZeroDivisionError: of a program"
        assert {found[n].state for n in (1, 3, 5)} == {State.FAILED}
    assert multiprocessing.active_children() == []


def rest(address: str) -> None:
    """Work on a table that does not end: it leaves the id of its process at the address."""
    Path(f"{address}.new").write_text(str(os.getpid()))
    Path(f"{address}.new").rename(address)
    time.sleep(600)


KILLED = """
import sys
from kudulite.tools.choice import Choice
from kudulite.tools.outcomes import outcomes_in_processes
from tests.features.tools.test_commands_on_directories import rest
outcomes_in_processes(rest, Choice(sys.argv[1:]), "rest", 2)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_a_command_that_is_killed(tmp_path: Path, number: int):
    """As `timeout` does it in a crontab, in which they would be more every hour."""
    places = [tmp_path / "a", tmp_path / "b"]
    command = subprocess.Popen([sys.executable, "-c", KILLED, *map(str, places)])
    wait_until(lambda: all(place.exists() for place in places))
    workers = [int(place.read_text()) for place in places]
    command.send_signal(number)
    command.wait()
    wait_until(lambda: not any(map(is_running, workers)))


def is_running(process: int) -> bool:
    """Whether a process of this user is there, and has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when something has happened in another process; fail if it takes a minute."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.full
def test_a_directory_of_a_store_is_done_in_processes(object_server: ObjectServer, tmp_path: Path):
    """Each process has the storage options of the command."""
    root = f"s3://{object_server.bucket}/{tmp_path.name}"
    client = kudulite.connect(
        root, background_maintenance=False, storage_options=object_server.options
    )
    for name in ("a_1", "a_2", "b"):
        client.create_table(name, SCHEMA, primary_key="k").insert([{"k": 1, "v": name}])
    options = [f"--storage-option={name}={given}" for name, given in object_server.options.items()]
    for command in ("flush", "maintain", "check", "sizes"):
        assert tables_of(root, *options, command=command) == ["a_1", "a_2", "b"]
    assert tables_of(f"{root}/a_*", *options) == ["a_1", "a_2"]
    assert [row["rows"] for row in value("list", root, *options, "--long")] == [1, 1, 1]
    assert parsed(output("metrics", root, *options))["kudulite_tables_unreadable"] == {"": 0.0}
    value("backup", root, f"{root}-sets", *options)
    assert [row["result"]["rows"] for row in
            value("restore", f"{root}-sets", f"{root}-again", *options)] == [1, 1, 1]  # fmt: skip
    assert "no table in" in error("check", f"{root}/c*", *options)
    exported = export(tmp_path / "export", "kudu", [1, 2])
    for action in ("made", "is there already"):
        (row,) = value("import-kudu", exported, root, *options)
        assert row["result"]["action"] == action
    assert len(client.table("kudu")) == 2
