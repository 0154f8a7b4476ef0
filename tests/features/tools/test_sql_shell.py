"""`kudulite sql`: one query, and the shell."""

import io
import sys

import pytest

import kudulite
from kudulite.errors import UsageError
from kudulite.tools import commands_sql
from kudulite.tools.output import RowFormat
from tests.support.command_line import error, output


@pytest.fixture
def root(tmp_path):
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b;c"}]
    client = kudulite.connect(tmp_path / "tables", background_maintenance=False)
    client.create_table("hosts", rows, primary_key="id").insert(rows)
    return client.root


def test_a_query_is_printed_in_each_format(root, tmp_path):
    query = "SELECT id, name FROM hosts ORDER BY id"
    assert output("sql", root, query).split() == ["id", "name", "1", "a", "2", "b;c"]
    assert output("sql", root, query, "--format", "csv") == '"id","name"\n1,"a"\n2,"b;c"\n'
    assert output("sql", root, "SELECT sum(id) n FROM hosts", "--format", "json") == '{"n": 3}\n'
    assert "did you mean hosts" in error("sql", root, "FROM host")


def shell_output(root, text, monkeypatch, capsys):
    """Return the output of the shell for an input that is no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    commands_sql.sql(str(root), row_format=RowFormat.JSON)
    return capsys.readouterr().out.splitlines()


def test_a_statement_ends_with_a_semicolon_outside_of_texts(root, monkeypatch, capsys):
    """Not with one in a text or in a comment; the last one needs none."""
    lines = "SELECT id FROM hosts -- a;\nWHERE name = 'b;c';\n.tables\nSELECT 7 AS x"
    assert shell_output(root, lines, monkeypatch, capsys) == ['{"id": 2}', "hosts", '{"x": 7}']


def test_the_first_error_ends_a_shell_without_a_terminal(root, monkeypatch, capsys):
    with pytest.raises(UsageError, match="nope"):
        shell_output(root, "SELECT nope FROM hosts;\nSELECT 2;", monkeypatch, capsys)
    assert capsys.readouterr().out == ""


def test_completion_knows_commands_tables_columns_and_keywords(root):
    shell = commands_sql._Shell(kudulite.connect(root), None, RowFormat.TABLE)
    found = {text: shell.complete(text, 0) for text in (".ta", "ho", "na", "h.na", "sele", "zzz")}
    assert found == {
        ".ta": ".tables",
        "ho": "hosts",
        "na": "name",
        "h.na": "h.name",
        "sele": "SELECT",
        "zzz": None,
    }
