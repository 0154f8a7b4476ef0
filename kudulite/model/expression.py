"""Expressions: what a user writes to compute a cell from the cells of its row.

    table["n"] + 1                Computed    arithmetic on columns and values
    expr("upper(city)")           Computed    SQL text

An expression is its SQL text, which the write parses when it knows the schema (expression_text.py).

**Threads**: any; expressions never change and can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, NoReturn

from kudulite.errors import UsageError


class Arithmetic:
    """A value with `+`, `-`, `*`, `/`, `%` and `-x`, which join SQL texts."""

    __slots__ = ()

    @property
    def sql(self) -> str:
        """The SQL text, which may stand beside any operator."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Computed:
        return Computed(f"({self.sql} + {literal_sql(other)})")

    def __radd__(self, other: Any) -> Computed:
        return Computed(f"({literal_sql(other)} + {self.sql})")

    def __sub__(self, other: Any) -> Computed:
        return Computed(f"({self.sql} - {literal_sql(other)})")

    def __rsub__(self, other: Any) -> Computed:
        return Computed(f"({literal_sql(other)} - {self.sql})")

    def __mul__(self, other: Any) -> Computed:
        return Computed(f"({self.sql} * {literal_sql(other)})")

    def __rmul__(self, other: Any) -> Computed:
        return Computed(f"({literal_sql(other)} * {self.sql})")

    def __truediv__(self, other: Any) -> Computed:
        return Computed(f"({self.sql} / {literal_sql(other)})")

    def __rtruediv__(self, other: Any) -> Computed:
        return Computed(f"({literal_sql(other)} / {self.sql})")

    def __mod__(self, other: Any) -> Computed:
        return Computed(f"({self.sql} % {literal_sql(other)})")

    def __rmod__(self, other: Any) -> Computed:
        return Computed(f"({literal_sql(other)} % {self.sql})")

    def __neg__(self) -> Computed:
        return Computed(f"(- {self.sql})")


@dataclass(frozen=True, eq=False)
class Computed(Arithmetic):
    """A value that each row computes from its own cells; see `expr`."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def sql(self) -> str:
        """The SQL text in parentheses, if it has none yet."""
        return self.text if self.text.startswith("(") else f"({self.text})"

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(
            f"computed value {self.text} is no condition: conditions compare a column with a"
            " constant, as in table['n'] > 1"
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # type: ignore[assignment]
    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __bool__ = _refuse
    __hash__ = object.__hash__


def expr(text: str) -> Computed:
    """Return SQL text as a value to set, as in `set={"city": expr("upper(city)")}`.

    Text that stands alone in `set` is a value for text columns, and an expression for all others.
    """
    if not isinstance(text, str):
        raise UsageError(f"expr takes SQL text, got {type(text).__name__}")
    return Computed(text)


def literal_sql(value: Any) -> str:
    """Return the SQL text of a column, an expression or a Python value. Raises UsageError."""
    if isinstance(value, Arithmetic):
        return value.sql
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"({value})" if value < 0 else str(value)
    if isinstance(value, float) and isfinite(value):
        return f"({value!r}D)" if "e" not in repr(value) else f"({value!r})"
    if isinstance(value, Decimal) and value.is_finite():
        return f"({value:f}BD)"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is None else value.astimezone(UTC)
        return f"TIMESTAMP '{zoned.isoformat(sep=' ')}'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, timedelta):
        return f"(INTERVAL '{value // timedelta(microseconds=1)}' MICROSECOND)"
    raise UsageError(f"an expression cannot have {value!r}, of type {type(value).__name__}")
