"""The command line: each command runs, says what it did, and as JSON says it to programs."""

import datetime
import decimal
import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import kudulite
from kudulite.errors import OptionError
from kudulite.shown.progress import Progress, byte_text
from kudulite.tools.cli import OTHER_WORDS, PANELS, app, run
from kudulite.tools.output import json_text, print_rows
from kudulite.upkeep.assessment import RULES
from tests.support.command_line import error, output, value

SCHEMA = pa.schema(
    [("k", pa.int64()), ("s", pa.string()), ("v", pa.float64()), ("d", pa.decimal128(9, 2))]
)

# Microseconds in the year 14645.
FAR = 400_000_000_000_000_000


def rows(*keys: int) -> pa.Table:
    """Rows of these keys."""
    values = [decimal.Decimal(key) / 4 for key in keys]
    columns = {"k": keys, "s": [f"s{key}" for key in keys], "v": [k / 8 for k in keys], "d": values}
    return pa.table(columns, SCHEMA)


@pytest.fixture
def table(tmp_path) -> kudulite.Table:
    """A table of two tablets with overlapping rowsets, one of them with an update."""
    client = kudulite.connect(tmp_path / "root", background_maintenance=False)
    made = client.create_table("metrics", SCHEMA, primary_key="k", hash_partitions=[("k", 2)])
    for keys in (range(0, 3000, 3), range(1, 3000, 3), range(2, 3000, 3)):
        write = made.new_bulk_write("upsert")
        write.commit([write.stage([rows(*keys)])])
        made.flush()
    made.upsert(rows(3))
    return made


def test_list_names_the_tables_of_a_directory(table):
    """With their sizes; an empty directory has none, and what is none is a usage error."""
    (found,) = value("list", table.path.parent)
    assert (found["name"], found["rows"], found["tablets"]) == ("metrics", 3000, 2)
    assert "metrics  3,000" in output("list", table.path.parent)
    assert value("list", table.path / "writes") == []
    assert "is not a directory" in output("list", table.path / "nothing", status=2)


def test_describe_shows_columns_partitions_and_debt(table):
    """The same figures as `Table.statistics`."""
    text = output("describe", table.path)
    assert "hash(k) × 2" in text and "decimal(9, 2)" in text and "rowset_height" in text
    found = value("describe", table.path)
    assert [column["name"] for column in found["columns"]] == ["k", "s", "v", "d"]
    assert found["primary_key"] == ["k"]
    moving = ("ancient_history_mark",)
    expected = {n: v for n, v in vars(table.statistics).items() if n not in moving}
    assert expected.items() <= found["statistics"].items()


def test_describe_says_which_figures_need_attention_and_what_to_type(table):
    """Nothing but their state, if all are good."""
    assert [f["level"] for f in value("describe", table.path)["upkeep"]] == ["good"] * len(RULES)
    assert "kudulite" not in output("describe", table.path).partition("figure")[2]
    for number in range(12):  # each over all keys
        write = table.new_bulk_write("upsert")
        write.commit([write.stage([rows(*range(10_000 + number, 90_000, 100))])])
        table.flush()
    (height,) = [line for line in output("describe", table.path).splitlines() if "height" in line]
    assert height.split()[2] == "act"
    assert height.endswith(f"kudulite maintain {table.path}")
    (found,) = [f for f in value("describe", table.path)["upkeep"] if f["level"] != "good"]
    assert (found["figure"], found["level"]) == ("rowset_height", "act")
    output("maintain", table.path)
    assert {f["level"] for f in value("describe", table.path)["upkeep"]} == {"good"}


def test_a_word_of_another_tool_gets_the_command_that_does_it():
    """`statistics` is `describe`, not `partitions`, which only looks like it."""
    names = {each.name or each.callback.__name__ for each in app.registered_commands}
    assert names.isdisjoint(OTHER_WORDS)
    assert {advice.split()[0] for advice in OTHER_WORDS.values()} <= names
    assert "Type: kudulite describe TABLE" in output("statistics", status=2)
    assert "Type: kudulite check TABLE" in output("ksck", "wh", status=2)
    assert "Did you mean 'describe'" in output("descibe", status=2)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_on_a_terminal_is_never_cut(width, monkeypatch, capsys):
    """Long texts go on in the next line; rows that are marked are red."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    cells = [["250.8 MiB", 123_456_789, "a word " * 9 + "x" * 30], ["1.0 KiB", 5, "user@host:12"]]
    print_rows(["size", "rows", "message"], cells, thousands=True, marked={1})
    text = capsys.readouterr().out
    assert "\x1b[31m" in text.splitlines()[-1] and "\x1b[31m" not in text.splitlines()[1]
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "…" not in plain and "250.8 MiB" in plain and "123,456,789" in plain
    assert plain.count("word") == 9 and plain.count("x") == 30
    if width > 40:
        assert max(map(len, plain.splitlines())) <= width


def test_scan_prints_rows_in_four_forms(table, tmp_path):
    """As a table, CSV, JSON lines, and to a Parquet file."""
    assert output("scan", table.path, "--limit", 1, "--ordered").split() == [
        "k", "s", "v", "d", "0", "s0", "0.0", "0.00",
    ]  # fmt: skip
    line = output("scan", table.path, "--limit", 2, "--ordered", "--json").splitlines()[1]
    assert json.loads(line) == {"k": 1, "s": "s1", "v": 0.125, "d": "0.25"}
    narrow = output("scan", table.path, "--columns", "v, k", "--ordered", "--format", "csv")
    assert narrow.splitlines()[:3] == ['"v","k"', "0,0", "0.125,1"]
    for kind, read in (("csv", pa.csv.read_csv), ("parquet", pa.parquet.read_table)):
        file = tmp_path / f"rows.{kind}"
        output("scan", table.path, "--format", kind, "--output", file)
        assert read(file).num_rows == 3000


def test_scan_to_csv_names_the_column_of_bytes(tmp_path):
    """Bytes that are text are written as such; others have no CSV."""
    schema = pa.schema([("k", pa.int64()), ("raw", pa.binary())])
    made = kudulite.connect(tmp_path).create_table("t", schema, primary_key="k")
    made.insert([{"k": 1, "raw": b"a"}])
    arguments = ["scan", made.path, "--format", "csv"]
    assert output(*arguments).splitlines() == ['"k","raw"', '1,"a"']
    made.insert([{"k": 2, "raw": b"\xff"}])
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(result.exception, OptionError)
    assert "CSV cannot hold the bytes of column raw, which are not text;" in str(result.exception)


def test_scan_reads_the_past(table):
    """At a moment as Python takes it."""
    moment = table.current_timestamp()
    table.truncate()
    assert output("scan", table.path, "--json") == ""
    assert len(output("scan", table.path, "--at", moment, "--json").splitlines()) == 3000


def test_scan_to_parquet_needs_a_file(table):
    """A Parquet file is not for a terminal; a table is not for a file."""
    result = CliRunner().invoke(app, ["scan", str(table.path), "--format", "parquet"])
    assert "--format parquet needs --output FILE" in str(result.exception)
    result = CliRunner().invoke(app, ["scan", str(table.path), "--output", "x"])
    assert "--output needs --format" in str(result.exception)


def test_changes_prints_one_row_per_key(table):
    """In (start, end], with the row before where that is asked for."""
    moment = table.current_timestamp()
    table.upsert(rows(5000))
    table.delete(pa.table({"k": [1]}))
    lines = output("changes", table.path, moment, "--columns", "k", "--json").splitlines()
    found = {row["k"]: row["_change_type"] for row in map(json.loads, lines)}
    assert found == {5000: "insert", 1: "delete"}
    assert output("changes", table.path, moment, moment, "--json") == ""
    table.update([{"k": 2, "s": "new"}])
    both = ["changes", str(table.path), str(moment), "--images", "both", "--columns", "s"]
    found = [(row["_change_type"], row["s"]) for row in map(json.loads, lines_of(*both, "--json"))]
    assert sorted(found) == [
        ("delete", "s1"),
        ("insert", "s5000"),
        ("update_postimage", "new"),
        ("update_preimage", "s2"),
    ]
    assert found.index(("update_preimage", "s2")) + 1 == found.index(("update_postimage", "new"))
    shown = lines_of(*both, "--format", "csv")
    assert [line.split(",")[:2] for line in shown[1:]] == [
        [f'"{text}"', f'"{kind}"'] for kind, text in found
    ]
    for arguments, message in (
        (["--before"], "--before is --images both now"),
        (["--images", "before"], "unknown images 'before' of changes; known: after, both"),
    ):
        refused = CliRunner().invoke(app, [*both[:3], *arguments])
        assert message in str(refused.exception)


def lines_of(*arguments: object) -> list[str]:
    """The lines that a command prints."""
    return output(*arguments).splitlines()


def test_history_prints_the_versions_of_a_row(table):
    """By its key, as it is typed."""
    lines = output("history", table.path, 3, "--json").splitlines()
    assert [json.loads(line)["_change_type"] for line in lines] == ["insert", "update_postimage"]
    assert "update" in output("history", table.path, 3)
    assert output("history", table.path, 99_999, "--json") == ""
    for wrong, message in ((["x"], "key column 'k'"), (["1", "2"], "2 values were given")):
        result = CliRunner().invoke(app, ["history", str(table.path), *wrong])
        assert message in str(result.exception)


def test_flush_says_how_many_tablets_had_something(table):
    """The update of one row is in one log."""
    assert "1 of 2 tablets were flushed" in output("flush", table.path)
    assert value("flush", table.path) == {"flushed_tablet_count": 0}


def test_maintain_does_what_is_worth_it_and_collects_garbage(table):
    """Afterwards there is nothing more to do, and every row is there."""
    found = value("maintain", table.path, "--grace-seconds", 0)
    assert found["flushed_tablet_count"] == 1 and found["garbage"]["file_count"] > 0
    merges = [done for done in found["operations"] if done["kind"] == "CompactRowSets"]
    assert {done["tablet_id"] for done in merges} == set(table.tablet_ids)
    assert all(done["rowset_count_after"] == 1 for done in merges)
    text = output("maintain", table.path)
    assert "0 B written by 0 operations" in text and "removed 0 files" in text
    assert table.statistics.rowset_height == 1.0 and table.scan().count() == 3000


def test_maintain_keeps_to_its_budget(table):
    """Nothing is rewritten with a budget of nothing."""
    assert value("maintain", table.path, "--budget-megabytes", 0)["operations"] == []


def test_compact_leaves_one_clean_rowset_per_tablet(table):
    """Also where that is not worth it."""
    found = value("compact", table.path)
    assert {done["tablet_id"] for done in found["operations"]} == set(table.tablet_ids)
    figures = table.statistics
    assert (figures.rowset_count, figures.redo_file_count) == (2, 0)
    assert "0 operations" in output("compact", table.path)


def test_check_ends_with_status_1_where_there_are_problems(table):
    """And with 0 where there are none."""
    assert ": no problems" in output("check", table.path)
    assert value("check", table.path)["problems"] == []
    bloom = next(table.path.rglob("bloom-*.bin"))
    bloom.write_bytes(bloom.read_bytes()[:-1] + b"?")
    assert str(bloom) in output("check", table.path, status=1)
    assert value("check", table.path, status=1)["problems"]


def test_layout_draws_every_rowset(table, tmp_path):
    """As text, as JSON, and as a picture."""
    lines = output("layout", table.path).splitlines()
    assert len(lines) == 2 + 6 and "3 rowsets, height " in lines[0]
    found = value("layout", table.path)
    assert [len(tablet["rowsets"]) for tablet in found] == [3, 3]
    assert output("layout", table.path, "--png", tmp_path / "a.png") == ""
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"


def test_an_error_of_the_library_is_a_message_and_status_1(table, monkeypatch, capsys):
    """No trace of the program's inside."""
    monkeypatch.setattr(sys, "argv", ["kudulite", "describe", str(table.path.parent)])
    assert run() == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("kudulite: ")
    assert "is not a kudulite table" in captured.err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_the_command_says_what_to_install(missing):
    """Its libraries are an optional extra; the project's name is on no registry."""
    script = f"import sys; sys.modules['{missing}'] = None; import kudulite.tools.entry"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr == (
        f"kudulite: the command line needs {missing}; install the packages of its extra `cli`:"
        " pip install typer rich, or, in a checkout of kudulite, pip install '.[cli]'\n"
    )


def test_progress_is_not_shown_where_there_is_no_terminal(capsys):
    """A pipe gets results only."""
    with Progress("working") as progress:
        progress.say("still working")
    assert capsys.readouterr() == ("", "")


def test_values_that_json_does_not_have():
    """ISO 8601, base64, digits; what nobody knows is an error."""
    moment = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)
    assert json_text([moment, moment.date(), b"ab", decimal.Decimal("1.50")]) == (
        '["2026-11-21T10:00:00+00:00", "2026-11-21", "YWI=", "1.50"]'
    )
    with pytest.raises(TypeError):
        json_text(object())


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 50, "3072.0 TiB"),
    ],
)
def test_bytes_as_people_read_them(count, text):
    """Up to tebibytes."""
    assert byte_text(count) == text


def test_the_documents_list_every_command():
    """Each with a part of its own."""
    document = (Path(__file__).parents[3] / "docs" / "command_line.md").read_text()
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert names == set(re.findall(r"^### ([\w-]+)$", document, re.MULTILINE))


def test_the_version_is_printed_without_a_command():
    """Of the package."""
    assert output("--version") == f"kudulite {kudulite.__version__}\n"


def test_get_prints_one_row(table):
    """By its key as it is typed, at a moment; an absent key ends with status 1."""
    before = table.current_timestamp()
    table.delete([{"k": 3}])
    assert value("get", table.path, 6) == {"k": 6, "s": "s6", "v": 0.75, "d": "1.50"}
    assert output("get", table.path, 3, "--at", before).splitlines()[1] == "s  s3"
    assert "table 'metrics' has no row with k = 3" in error("get", table.path, 3)
    assert "2 values were given" in error("get", table.path, 3, 4)


def test_scan_takes_a_condition(table):
    """As a text, with the columns that it names or without them."""
    found = output("scan", table.path, "--where", "k < 3 AND s != 's1' OR k = 9", "--json")
    assert {json.loads(line)["k"] for line in found.splitlines()} == {0, 2, 9}
    assert output("scan", table.path, "--where", "k = 7", "--columns", "s").split() == ["s", "s7"]
    assert "'x'" in error("scan", table.path, "--where", "x = 1")


def test_a_wide_table_is_not_cut_in_a_pipe(tmp_path):
    """Every cell and every name is there as a whole."""
    names = [f"a_long_column_name_{number}" for number in range(12)]
    made = kudulite.connect(tmp_path).create_table(
        "t", pa.schema([(name, pa.string()) for name in names]), primary_key=names[0]
    )
    made.insert([dict.fromkeys(names, "x" * 60)])
    header, row = output("scan", made.path).splitlines()
    assert header.split() == names and row.split() == ["x" * 60] * 12


def test_times_are_readable_and_exact(table):
    """Of changes beside the HybridTime, which reads the same moment, as any text of one does."""
    stamp = table.delete([{"k": 1}]).timestamp
    for arguments in (("history", table.path, 1), ("changes", table.path, stamp - 1)):
        shown = output(*arguments).splitlines()[-1].split()
        end = shown.index(str(int(stamp)))
        assert shown[end : end + 3] == [str(int(stamp)), *str(stamp.to_datetime()).split()]
        row = json.loads(output(*arguments, "--json").splitlines()[-1])
        assert row["_commit_version"] == stamp
        assert row["_commit_timestamp"] == stamp.to_datetime().isoformat()
    for moment, count in ((stamp, 2999), (stamp - 1, 3000)):
        at = kudulite.Timestamp(moment)
        assert len(output("scan", table.path, "--at", at, "--json").splitlines()) == count
    figures = value("describe", table.path)["statistics"]
    mark = kudulite.Timestamp(figures["ancient_history_mark"])
    assert figures["ancient_history_mark_time"] == str(mark)


def test_watch_prints_the_statistics_again_and_again(table):
    """In a pipe one look after the other; as JSON one line each."""
    text = output("watch", table.path, "--interval", 0, "--count", 2)
    assert text.count("live_row_count        3,000\n") == 2 and text.count("\n\n") == 2
    lines = output("watch", table.path, "--interval", 0, "--count", 3, "--json").splitlines()
    assert [json.loads(line)["statistics"]["live_row_count"] for line in lines] == [3000] * 3


def test_watch_redraws_on_a_terminal_and_ends_with_ctrl_c(table, monkeypatch):
    """The second look replaces the first; an interrupt is its normal end."""
    looks = []

    def sleep(seconds):
        if seconds != 7:  # of another thread
            return
        looks.append(seconds)
        if len(looks) >= 3:
            raise KeyboardInterrupt

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("kudulite.tools.commands_look.time.sleep", sleep)
    text = output("watch", table.path, "--interval", 7)
    assert looks == [7, 7, 7] and text.count("live_row_count") >= 3 and "\x1b[" in text


def test_list_refuses_a_table(table):
    """A person who typed the folder of a table hears what it is."""
    words = " ".join(output("list", table.path, status=2).replace("│", "").split())
    assert "is a table, not a directory of tables" in words


def test_metrics_prints_the_statistics_of_tables_as_openmetrics(table):
    """Each figure once, with a sample of each table, however often one is named."""
    other = kudulite.connect(table.path.parent).create_table("other", SCHEMA, primary_key="k")
    lines = output("metrics", table.path, other.path, table.path).splitlines()
    for each, count in ((table, table.live_row_count), (other, 0)):
        label = f'{{table="{each.name}",path="{each.path}"}}'
        assert lines.count(f"kudulite_table_live_row_count{label} {count}") == 1
    assert lines.count("# TYPE kudulite_table_live_row_count gauge") == 1
    assert "# UNIT kudulite_table_ancient_history_mark_seconds seconds" in lines
    assert lines[-1] == "# EOF"


@pytest.fixture
def far(tmp_path) -> kudulite.Table:
    """Rows with moments outside the years 1 to 9999: in base data, deltas and the log."""
    moment, naive = pa.timestamp("us", "UTC"), pa.timestamp("us")
    schema = pa.schema([("k", moment), ("n", naive), ("a", pa.list_(moment))])
    client = kudulite.connect(tmp_path / "far", background_maintenance=False)
    made = client.create_table("far", schema, primary_key="k")
    for _ in range(2):
        write = made.new_bulk_write("upsert")
        cells = {"k": [FAR, 0], "n": [-FAR, None], "a": [[FAR, 0, None], None]}
        write.commit([write.stage([pa.table(cells, schema)])])
    with client.new_session() as session:
        session.apply(made.new_upsert({"k": FAR, "n": -FAR, "a": [FAR, -FAR]}))
    return made


def test_a_moment_outside_of_the_years_of_python_is_its_microseconds(far):
    """In each format that prints rows, and as a key."""
    assert str(FAR) in output("scan", far.path)
    newest = {"k": FAR, "n": -FAR, "a": [FAR, -FAR]}
    (found,) = [
        row
        for row in map(json.loads, output("scan", far.path, "--json").splitlines())
        if row["k"] == FAR
    ]
    assert found == newest == value("get", far.path, FAR)
    assert str(FAR) in output("get", far.path, FAR)
    assert "1970-01-01" in output("get", far.path, 0)
    assert "1970-01-01" in output("get", far.path, "1970-01-01T00:00:00Z")
    assert str(FAR) in output("history", far.path, FAR)
    for form in ("table", "json"):
        text = output("changes", far.path, 0, "--images", "both", "--format", form)
        assert str(FAR) in text and str(-FAR) in text
    assert output("scan", far.path, "--columns", "k,n", "--format", "csv").count("\n") == 3
    for pattern in ("base-*", "redo-*", "wal/*.log"):
        for path in far.path.rglob(pattern):
            assert str(FAR) in output("dump", path)
    rows = far.scan(ordered=True).to_pylist()
    assert rows[1] == newest == list(far.scan(ordered=True))[1]
    assert rows[0]["k"] == datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize("text", ["9" * 30, "12-", "1e3", "294247-01-10"])
def test_a_text_that_is_no_moment_is_refused(far, text):
    """Also microseconds that no column can hold."""
    assert "key column 'k'" in error("get", far.path, text)


def test_the_help_shows_the_first_paragraph_of_each_command():
    """Which is written beside its name, because `--help` imports no command."""
    for commands in PANELS.values():
        for place, summary in commands.items():
            module, _, function = place.partition(".")
            command = getattr(importlib.import_module(f"kudulite.tools.{module}"), function)
            assert summary == inspect.getdoc(command).partition("\n\n")[0].replace("\n", " "), place


def test_a_command_is_completed_with_its_own_options(monkeypatch, capsys):
    """In a shell, after the name of the command and the start of an option."""
    monkeypatch.setattr(sys, "argv", ["kudulite"])
    words = {"COMP_WORDS": "kudulite recall --storage", "COMP_CWORD": "2"}
    for name, text in {**words, "_KUDULITE_COMPLETE": "complete_bash"}.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit):
        app(prog_name="kudulite")
    assert capsys.readouterr().out.split() == ["--storage-option"]


@pytest.mark.parametrize("arguments", ["--help", "--version", "nothing"])
def test_the_help_imports_no_command(arguments):
    """Nor Arrow, nor a table: it is what a user types first."""
    script = (
        "import sys; from kudulite.tools.cli import app\n"
        f"try: app(['{arguments}'])\n"
        "except SystemExit: print('modules', *sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    modules = run.stdout.rpartition("modules ")[2].split()
    assert {name for name in modules if name.startswith("kudulite")} == {
        *("kudulite", "kudulite.errors", "kudulite.tools", "kudulite.tools.cli")
    }
    assert {"numpy", "pyarrow", "sqlglot"} & {*modules} == set()
