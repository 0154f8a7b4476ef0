"""create, alter, rename, drop, retention and tags on the command line."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kudulite
from tests.support.command_line import error, output, value

COLUMNS = ("host:string", "id:int64!", "load:double!", "price:decimal(9,2)")


@pytest.fixture
def path(tmp_path):
    """The folder of a table that was created on the command line and has a row."""
    place = tmp_path / "root" / "t"
    output("create", place, *COLUMNS, "--primary-key", "id, host", "--hash", "host:2")
    kudulite.open_table(place).insert([{"id": 1, "host": "a", "load": 0.5}])
    return place


def test_create_makes_a_table_of_columns(tmp_path, path):
    """The key comes first and is NOT NULL; types are typed as they print."""
    table = kudulite.open_table(path)
    assert table.schema.key_names == ["id", "host"] and table.tablet_count == 2
    assert [(c.name, str(c.type), c.nullable) for c in table.schema] == [
        ("id", "int64", False),
        ("host", "string", False),
        ("load", "double", False),
        ("price", "decimal(9, 2)", True),
    ]
    ranges = '{"columns": ["k"], "bounds": [[0, 10], [10, null]]}'
    found = value("create", tmp_path / "r", "k:int8", "--primary-key", "k", "--range", ranges)
    assert found["tablets"] == 2 and found["id"] == kudulite.open_table(tmp_path / "r").id


def test_create_takes_the_columns_of_a_file(tmp_path):
    """CSV or Parquet; the table is empty."""
    (tmp_path / "a.csv").write_text("id,name\n1,x\n")
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), tmp_path / "b.parquet")
    for file in ("a.csv", "b.parquet"):
        place = tmp_path / file[0]
        assert "id, name; 1 tablet\n" in output(
            "create", place, "--like", tmp_path / file, "--primary-key", "id"
        )
        assert len(kudulite.open_table(place)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "create needs --primary-key, and either columns"),
        (("k:int8",), "create needs --primary-key, and either columns"),
        (("--primary-key", "k"), "create needs --primary-key, and either columns"),
        (("k", "--primary-key", "k"), "column 'k': expected NAME:TYPE"),
        (("k:number", "--primary-key", "k"), "number"),
        (("k:int8", "--primary-key", "x"), "'x'"),
    ],
)
def test_create_says_what_is_wrong(tmp_path, arguments, message):
    """And makes nothing."""
    assert message in error("create", tmp_path / "t", *arguments)
    assert not (tmp_path / "t").exists()


def test_alter_drops_renames_adds_and_sets_defaults_in_one_version(path):
    """In this order, so a default is set under the name that a column has afterwards."""
    found = value(
        "alter", path, "--add-column", "price:int32!", "--drop-column", "price",
        "--rename-column", "load:value", "--set-default", "price=7", "--set-default", "value=1.5",
    )  # fmt: skip
    assert found["version"] == 2
    table = kudulite.open_table(path)
    assert table.get((1, "a")) == {"id": 1, "host": "a", "value": 0.5, "price": 7}
    table.insert([{"id": 2, "host": "b"}])
    assert table.get((2, "b"))["value"] == 1.5
    assert 'double "value" NOT NULL, int32' in output("alter", path, "--remove-default", "value")


def test_owner_and_comment_are_set_shown_and_altered(tmp_path):
    """By create and alter; list and describe show them; an empty comment removes it."""
    place = tmp_path / "root" / "t"
    output(
        "create", place, "k:int8", "--primary-key", "k", "--owner", "ada", "--comment", "of tests"
    )
    shown = [value("describe", place), value("list", place.parent)[0]]
    assert [(found["owner"], found["comment"]) for found in shown] == [("ada", "of tests")] * 2
    assert "owner ada\ncomment of tests\n\n" in output("describe", place)
    assert value("alter", place, "--owner", "bob", "--comment", "")["version"] == 2
    assert "owner bob\n\n" in output("describe", place)
    assert "owner '': expected a name" in error("alter", place, "--owner", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no alter steps provided"),
        (("--drop-column", "x"), "no column 'x'"),
        (("--rename-column", "load"), "expected OLD:NEW"),
        (("--set-default", "x=1"), "no column 'x'; columns: id, host, load, price"),
        (("--set-default", "load"), "expected NAME=VALUE"),
        (("--set-default", "load=much"), "column 'load': "),
        (("--add-column", "x:int8!"), "needs a default"),
    ],
)
def test_alter_says_what_is_wrong(path, arguments, message):
    """And makes no version."""
    assert message in error("alter", path, *arguments)
    assert kudulite.open_table(path).version == 1


def test_rename_moves_the_folder(path):
    """Within its directory."""
    assert value("rename", path, "u")["path"] == str(path.with_name("u"))
    assert len(kudulite.open_table(path.with_name("u"))) == 1 and not path.exists()
    assert "is not a kudulite table" in error("rename", path, "v")
    assert "name" in error("rename", path.with_name("u"), "a/b")


def test_drop_asks_and_does_not_guess(path, monkeypatch):
    """On a terminal it asks; elsewhere it needs --yes."""
    assert "give --yes to delete without asking" in error("drop", path)
    assert value("drop", path, "--yes") == {"path": str(path), "rows": 1}
    assert not path.exists()


@pytest.mark.parametrize(("answer", "is_there"), [("n", True), ("y", False)])
def test_drop_does_as_it_is_answered(path, monkeypatch, answer, is_there):
    """The question names the table and its rows."""
    asked = []

    def confirm(text, abort):
        asked.append(text)
        if answer == "n":
            raise SystemExit(1)

    monkeypatch.setattr("kudulite.tools.commands_table.is_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", confirm)
    output("drop", path, status=int(is_there))
    assert path.exists() == is_there
    assert asked == [f"delete {path} with 1 row and all its history?"]


def test_a_table_dropped_with_a_reserve_is_listed_and_recalled(path, monkeypatch):
    """By the id that `drop` and `list` print, under its name or another one."""
    found = value("drop", path, "--yes", "--reserve", "2h")
    (listed,) = value("list", path.parent, "--soft-deleted")
    assert {n: found[n] for n in ("id", "expires")}.items() <= listed.items()
    assert (found["rows"], listed["name"]) == (1, "t") and not path.exists()
    assert value("list", path.parent) == []
    assert "no soft-deleted table with id 'x'" in error("recall", path.parent, "x")
    assert "is not a directory" in error("recall", path.parent / "none", found["id"])
    assert value("recall", path.parent, found["id"]) == {"path": str(path), "rows": 1}
    assert f"kudulite recall {path.parent} {found['id']} brings" in output(
        "drop", path, "--yes", "--reserve", "60"
    )
    assert found["id"] in output("list", path.parent, "--soft-deleted")
    text = output("recall", path.parent, found["id"], "--name", "u")
    assert text == f"{path.with_name('u')} is back with 1 row\n"
    assert output("list", path.parent, "--soft-deleted") == ""
    assert "'soon' is no duration" in error("drop", path.with_name("u"), "--reserve", "soon")


def test_retention_is_shown_and_set(path):
    """In seconds, or with a unit."""
    created = kudulite.open_table(path).versions()[-1].timestamp
    assert output("retention", path).endswith(f"kept for 1w; readable since {created}\n")
    found = value("retention", path, "36h")
    assert (found["history_seconds"], found["readable_since"]) == (36 * 3600, created)
    assert "kept for 36h;" in output("retention", path)
    assert "kept for 90s;" in output("retention", path, "90")
    assert "'soon' is no duration" in error("retention", path, "soon")


def test_tags_are_made_listed_and_deleted(path):
    """With their times."""
    table = kudulite.open_table(path)
    assert output("tags", path) == "" and value("tags", path) == []
    moment = table.current_timestamp()
    (made,) = value("tag", path, "audit", "--at", moment)
    assert made == {"tag": "audit", "timestamp": int(moment), "time": str(moment)}
    assert table.tags == {"audit": moment}
    assert output("tags", path).splitlines()[1].split() == ["audit", str(moment)]
    assert output("untag", path, "audit") == f"tag audit at {moment} is deleted\n"
    assert "has no tag 'audit'; tags: none" in error("untag", path, "audit")


def test_restore_brings_a_table_back_to_a_moment_or_a_version(path):
    """As printed by `versions`; backups and moments are not mixed."""
    table = kudulite.open_table(path)
    moment = table.current_timestamp()
    table.upsert([{"id": 1, "host": "a", "load": 9.0}, {"id": 2, "host": "b", "load": 1.0}])
    found = value("restore", path, "--to", moment)
    assert (found["updated"], found["deleted"]) == (1, 1)
    assert table.scan(["id", "load"]).to_pylist() == [{"id": 1, "load": 0.5}]
    assert output("restore", path, "--to", moment).startswith("nothing changed, at ")
    table.flush()
    table.delete(where="id = 1")
    assert value("restore", path, "--version", str(table.version))["inserted"] == 1
    assert "give one of them" in error("restore", path, "--to", moment, "--version", "2")
    assert "lists no version 99" in error("restore", path, "--version", "99")
    for wrong in (
        ("restore", path, path, "--to", moment),
        ("restore", path, path, "--version", "2"),
        ("restore", path),
    ):
        assert "restore takes SET and PATH" in error(*wrong) or "takes tables only" in error(*wrong)


def test_versions_are_listed_newest_first(path):
    """As `Table.versions` has them; a row of a log is in no version."""
    table = kudulite.open_table(path)
    columns = ["id", "host", "load"]
    write = table.new_bulk_write("insert", columns=columns, message="two rows")
    write.commit([write.stage([pa.table({"id": [3, 4], "host": ["c", "c"], "load": [0.0, 1.0]})])])
    found = value("versions", path)
    assert [row["version"] for row in found] == [v.version for v in table.versions()]
    newest = table.versions()[0]
    assert (found[0]["operation"], found[0]["inserted"]) == ("insert", 2)
    assert (found[0]["timestamp"], found[0]["time"]) == (newest.timestamp, str(newest.timestamp))
    (line,) = output("versions", path, "--limit", 1).splitlines()[1:]
    assert str(newest.timestamp) in line and line.rstrip().endswith("two rows")
