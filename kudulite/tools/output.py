"""What commands print: text for people, or with --json one JSON value for programs.

Results go to standard output. Progress and errors go to standard error, so a result can be piped;
progress is shown only on a terminal, and only when the work takes longer than two seconds.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table

PROGRESS_AFTER_SECONDS = 2.0
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_json(value: Any) -> None:
    """Print one value as a line of JSON; see `json_text`."""
    print(json_text(value))


def json_text(value: Any) -> str:
    """Return a value as JSON; what JSON does not have as ISO 8601, base64, or decimal digits."""
    return json.dumps(value, default=_json_value, ensure_ascii=False)


def _json_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime.datetime | datetime.date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"{value!r} has no form in JSON")


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print names and values, one a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name:<{width}}  {value}")


def print_rows(
    names: Sequence[str], rows: Iterable[Sequence[Any]], *, thousands: bool = False
) -> None:
    """Print a table; numbers to the right, with `thousands` in groups of three digits."""
    cells = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(names):
        is_number = all(isinstance(row[index], int | float) for row in cells)
        table.add_column(name, justify="right" if is_number and cells else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(f"{v:,}" if thousands and type(v) is int else str(v) for v in row))
    console = Console(markup=False, highlight=False)
    # What is piped is not cut to the width of a terminal.
    console.print(table, width=None if console.is_terminal else 100_000)


def byte_text(count: int) -> str:
    """Return a number of bytes as people read it: `12.3 MiB`."""
    size, unit = float(count), 0
    while size >= 1024 and unit + 1 < len(_UNITS):
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"


class Progress:
    """Says what is being done, on a terminal, once the work has taken two seconds."""

    def __init__(self, text: str) -> None:
        self._console = Console(stderr=True)
        self._status = Status(text, console=self._console)
        self._timer = threading.Timer(PROGRESS_AFTER_SECONDS, self._status.start)
        self._timer.daemon = True

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()
        self._status.stop()

    def say(self, text: str) -> None:
        """Replace what is said."""
        self._status.update(text)
