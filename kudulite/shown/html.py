"""HTML for notebooks: plain tables of names and values, in which every text is escaped.

`_repr_html_` of tables, schemas, scans, changes and statistics is made of these. A long text is
cut, so that a wide table stays small; a path beside its name is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import pyarrow as pa

CELL_CHARACTERS_MAX = 100
FIELD_CHARACTERS_MAX = 1_000
ROWS_SHOWN = 5


def html_table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table with a header; numbers stand to the right, and None is NULL."""
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_fields(fields: Iterable[tuple[str, Any]]) -> str:
    """Return a table of names and values, one pair per row."""
    most = FIELD_CHARACTERS_MAX
    body = "".join(f"<tr><th>{_text(name)}</th>{_cell(value, most)}</tr>" for name, value in fields)
    return f"<table><tbody>{body}</tbody></table>"


def html_title(text: str) -> str:
    """Return the line above a table."""
    return f"<p><b>{_text(text)}</b></p>"


def html_rows(rows: pa.Table) -> str:
    """Return rows as a table whose header has the types as well."""
    names = [f"{field.name} ({field.type})" for field in rows.schema]
    columns = [[_python_value(cell) for cell in column] for column in rows.columns]
    return html_table(names, zip(*columns, strict=True))


def _cell(value: Any, most: int = CELL_CHARACTERS_MAX) -> str:
    if isinstance(value, int | float) and type(value).__str__ in (int.__str__, float.__str__):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td>{'NULL' if value is None else _text(value, most)}</td>"


def _text(value: Any, most: int = CELL_CHARACTERS_MAX) -> str:
    text = str(value)
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def _python_value(cell: pa.Scalar) -> Any:
    try:
        return cell.as_py()
    except (OverflowError, ValueError):  # a moment outside the years of Python
        return f"{cell.value} µs" if isinstance(cell, pa.TimestampScalar) else f"<{cell.type}>"
