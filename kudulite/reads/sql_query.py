"""The text of an SQL query: which tables it names, and whether it only reads.

DuckDB parses the text, and gives the syntax tree of a SELECT as JSON. VALUES, FROM …, DESCRIBE,
SHOW and SUMMARIZE are SELECTs there. It gives no tree for anything that writes, not even inside of
a WITH, so whatever has no tree is refused. EXPLAIN is cut off before, because it has none.

A name is that of a table unless a WITH of the query defines it. The query may use it for both, so
tables named like a WITH are taken if they are there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kudulite.errors import NotSupportedError, OptionError, UsageError

if TYPE_CHECKING:
    import duckdb

_EXPLAIN = re.compile(r"\s*EXPLAIN\b(\s*ANALYZE\b|\s*\([^()]*\))?", re.IGNORECASE)
# Schemas of DuckDB itself.
_OWN_SCHEMAS = frozenset({"information_schema", "pg_catalog"})


class TableName(NamedTuple):
    """A table as a query names it: `"directory"."name"`, or only a name."""

    directory: str
    name: str


@dataclass(frozen=True)
class NamedTables:
    """The tables that a query needs."""

    names: frozenset[TableName]
    # Names of a WITH, which may be tables, too.
    defined: frozenset[str]
    # Whether it lists all tables.
    is_list: bool


def named_tables(connection: duckdb.DuckDBPyConnection, query: str) -> NamedTables:
    """Return the tables that a query names.

    Raises OptionError unless it is one statement, NotSupportedError unless it only reads, and
    DuckDB's error for a text that is no SQL.
    """
    if not isinstance(query, str):
        raise OptionError(f"a query is text, as in 'SELECT * FROM metrics'; got {query!r}")
    statements = connection.extract_statements(query)
    if len(statements) != 1:
        raise OptionError(
            f"the text has {len(statements)} statements, expected one SELECT; call sql for each"
        )
    parsed = _EXPLAIN.sub("", query, count=1) if _EXPLAIN.match(query) else query
    [[text]] = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [parsed]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise _refused(statements[0].type.name)
    nodes = list(_nodes(tree["statements"]))
    shown = [node for node in nodes if node.get("type") == "SHOW_REF"]
    names = {
        TableName(node["schema_name"], node["table_name"])
        for node in nodes
        if node.get("type") == "BASE_TABLE" and node["schema_name"] not in _OWN_SCHEMAS
    }
    for node in nodes:
        if node.get("type") == "BASE_TABLE" and node["catalog_name"]:
            raise UsageError(
                f"{node['catalog_name']}.{node['schema_name']}.{node['table_name']} is no name of"
                ' a table here: write "name", or "directory"."name" for a directory below that of'
                " the client"
            )
    names |= {TableName("", node["table_name"]) for node in shown if node["show_type"] == "SHOW"}
    defined = {
        entry["key"] for node in nodes if "cte_map" in node for entry in node["cte_map"]["map"]
    }
    is_list = any(node["show_type"] == "SHOW_SPECIAL" for node in shown)
    return NamedTables(frozenset(names), frozenset(defined), is_list)


def _refused(kind: str) -> NotSupportedError:
    if kind == "MULTI":
        return NotSupportedError(
            "sql knows a PIVOT only with its values, as in PIVOT t ON city IN ('Rome', 'Oslo')"
            " USING sum(n)"
        )
    return NotSupportedError(
        f"sql only reads, and refuses this {kind} statement: give one SELECT (or WITH, VALUES,"
        " FROM, DESCRIBE, SHOW, SUMMARIZE, EXPLAIN of one); tables are written with"
        " table.insert(…), upsert, update and delete, and results with to_arrow()"
    )


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a JSON value."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
