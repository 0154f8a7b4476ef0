"""CALL: the procedures of Spark SQL's catalog, `java/Procedure.java`.

To Spark all parameters are texts, to which it casts any argument: a TIMESTAMP becomes a time of the
session's zone, a BOOLEAN true or false. A text that is no value of the parameter is refused. A
table is named as in SQL, or by its path. A procedure returns one row. `optimize` and `vacuum` are
Delta's words for compaction and garbage collection.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import LongType, StringType, StructField, StructType

import kudulite
from kudulite.errors import NotSupportedError, SchemaError, UsageError
from kudulite_spark.options import Place, is_address
from kudulite_spark.session_zone import in_zone, is_shown_twice

if TYPE_CHECKING:
    from kudulite import ColumnType, Table, TableAlterer

Result = dict[str, int | str]

# The texts that Spark's cast to BOOLEAN takes.
_TRUE = frozenset({"t", "true", "y", "yes", "1"})
_FALSE = frozenset({"f", "false", "n", "no", "0"})
# A part of a name in SQL, in backticks or not, and the dot behind it.
_NAME_PART = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`.]+))\s*(\.|$)")
_INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True)
class Call:
    """One call: the table's place, the arguments that are not NULL, the zone of the session."""

    procedure: str
    place: Place
    arguments: Mapping[str, str]
    zone: str

    def text(self, name: str) -> str:
        """Return an argument that must be there."""
        return required(self.procedure, self.arguments, name)

    def boolean(self, name: str) -> bool | None:
        """Return a BOOLEAN, in any of Spark's spellings."""
        if name not in self.arguments:
            return None
        text = self.arguments[name].strip().lower()
        if text not in _TRUE | _FALSE:
            raise UsageError(
                f"procedure {self.procedure!r}: {name} is {self.arguments[name]!r}, expected true"
                " or false"
            )
        return text in _TRUE

    def number(self, name: str) -> int | None:
        """Return a whole number."""
        if name not in self.arguments:
            return None
        text = self.arguments[name].strip()
        if not _INTEGER.fullmatch(text):
            raise UsageError(f"procedure {self.procedure!r}: {name} is {text!r}, expected a number")
        return int(text)

    def moment(self, name: str) -> str | None:
        """Return a moment as a text with a zone, or as the number that it is given as."""
        return self.zoned(self.arguments[name]) if name in self.arguments else None

    def zoned(self, text: str) -> str:
        """Return the text of a moment with a zone; one without is in that of the session."""
        if is_shown_twice(text, self.zone):
            raise UsageError(
                f"procedure {self.procedure!r}: the clocks of {self.zone}, the session's zone, show"
                f" {text} twice; give the time as a text with its offset, as in"
                f" '{in_zone(text, self.zone)}'"
            )
        return in_zone(text, self.zone)


def required(procedure: str, arguments: Mapping[str, str], name: str) -> str:
    """Return an argument; UsageError if it is NULL."""
    if name not in arguments:
        raise UsageError(f"procedure {procedure!r}: {name} is NULL, expected a text")
    return arguments[name]


def procedure_parameters(name: str) -> list[str]:
    """Return the parameters of a procedure, all of them texts; ? marks those that may be left out.

    Raises NotSupportedError if there is no such procedure."""
    if name not in PROCEDURES:
        raise NotSupportedError(
            f"there is no procedure {name!r}; there are: {', '.join(PROCEDURES)}"
        )
    return ["table", *PROCEDURES[name][0].split()]


def call_procedure(warehouse: Place, question: dict[str, Any]) -> dict[str, Any]:
    """Call a procedure on a table, and return its row: {"schema": JSON, "values": texts}.

    The answer also has the names of the table in SQL, under which a session may have cached it."""
    name, arguments = question["name"], question["arguments"]
    table = required(name, arguments, "table")
    path = table if _is_path(table) else _path(warehouse.path, table, question["catalog"])
    call = Call(name, warehouse.of(path), arguments, question["zone"])
    result = PROCEDURES[name][1](call)
    fields = [
        StructField(name, LongType() if isinstance(value, int) else StringType())
        for name, value in result.items()
    ]
    return {
        "schema": StructType(fields).json(),
        "values": [str(v) for v in result.values()],
        "names": _names(warehouse.path, path, question["catalog"]),
    }


def _is_path(text: str) -> bool:
    return text.startswith("/") or is_address(text)


def _names(warehouse: str, path: str, catalog: str) -> list[str]:
    """Return the names of the table at `path` in SQL: its path, and the one in the catalog."""
    named = [[catalog, path]]
    if path.startswith(f"{warehouse}/"):
        named.append([catalog, *path.removeprefix(f"{warehouse}/").split("/")])
    return [".".join("`" + part.replace("`", "``") + "`" for part in parts) for parts in named]


def _path(warehouse: str, text: str, catalog: str) -> str:
    """Return the path of a table by its name in SQL, with or without the catalog."""
    names: list[str] = []
    end = 0
    while end < len(text) or not names or text[end - 1] == ".":
        found = _NAME_PART.match(text, end)
        if found is None:
            raise UsageError(
                f"{text!r} is the name of no table: write it as in SQL, with backticks around a"
                " part with dots, as in db.`my.table`"
            )
        names.append(found[1].replace("``", "`") if found[1] else found[2].strip())
        end = found.end()
    if names[0] == catalog and len(names) > 1:
        del names[0]
    if len(names) == 1 and _is_path(names[0]):
        return names[0]
    for name in names:
        if not name or name.startswith(".") or "/" in name:
            raise UsageError(
                f"{text!r}: {name!r} is the name of no table or namespace; it is that of a"
                " directory: without / and not beginning with a dot"
            )
    return "/".join([warehouse, *names])


def _maintain(call: Call) -> Result:
    done = call.place.table().maintain()
    return {
        "flushed_tablet_count": done.flushed_tablet_count,
        "operation_count": len(done.operations),
        "busy_tablet_count": len(done.busy_tablet_ids),
    }


def _compact(call: Call) -> Result:
    return {"operation_count": len(call.place.table().compact().operations)}


def _vacuum(call: Call) -> Result:
    # Without a budget nothing is rewritten: only garbage collection is left.
    removed = call.place.table().maintain(budget_bytes=0).garbage
    return {
        "version_count": removed.version_count,
        "file_count": removed.file_count,
        "byte_count": removed.byte_count,
    }


def _backup(call: Call) -> Result:
    made = kudulite.backup(call.place.table(), call.text("target"), full=call.boolean("full"))
    return {"backup_id": made.id, "byte_count": made.byte_count}


def _restore(call: Call) -> Result:
    misplaced = "version" if "target" in call.arguments else "overwrite"
    if misplaced in call.arguments:
        raise UsageError(
            f"restore of {call.place.path!r}: {misplaced} is for"
            f" {'a table without target' if misplaced == 'version' else 'backups in a target'}"
        )
    if "target" not in call.arguments:
        done = call.place.table().restore(call.moment("at"), version=call.number("version"))
        counts = {name: getattr(done, name) for name in ("inserted", "updated", "deleted")}
        return {"version": done.version, **counts}
    table = kudulite.restore(
        call.text("target"),
        call.place.path,
        at=call.moment("at"),
        overwrite=bool(call.boolean("overwrite")),
    )
    return {"path": str(table.path), "live_row_count": table.live_row_count}


def _tag(call: Call) -> Result:
    moment = call.place.table().tag(call.text("name"), call.moment("at"))
    return {"hybrid_time": int(moment)}


def _delete_tag(call: Call) -> Result:
    table = call.place.table()
    table.delete_tag(call.text("name"))
    return {"tag_count": len(table.tags)}


def _add_range(call: Call) -> Result:
    return _altered_ranges(call, kudulite.TableAlterer.add_range_partition)


def _drop_range(call: Call) -> Result:
    return _altered_ranges(call, kudulite.TableAlterer.drop_range_partition)


def _altered_ranges(call: Call, alter: Callable[..., TableAlterer]) -> Result:
    table, client = call.place.table(), call.place.parent.client()
    bounds = [_bound(table, call, which) for which in ("lower", "upper")]
    altered = alter(client.new_table_alterer(table), *bounds).alter()
    return {"range_count": len(altered.partition_schema.ranges)}


def _bound(table: Table, call: Call, which: str) -> tuple[Any, ...] | None:
    """Return a bound of a range from its text; one of several columns is a JSON list."""
    text = call.arguments.get(which)
    if text is None:
        return None
    types = [table.schema.column(name).type for name in table.partition_schema.range_columns]
    try:
        is_list = text.startswith("[")
        values = json.loads(text, parse_float=Decimal) if is_list else [text]
        return tuple(
            _bound_value(value, kind, call) for value, kind in zip(values, types, strict=True)
        )
    except ValueError as error:
        raise SchemaError(
            f"table {table.name!r}: {text!r} is no bound of a range: expected a value of"
            f" {', '.join(map(str, types))}, or a JSON list of several ({error})"
        ) from error


def _bound_value(value: Any, kind: ColumnType, call: Call) -> Any:
    if not isinstance(value, str):
        return value
    if kind.name == "unixtime_micros":
        return call.zoned(value)
    if kind.name.startswith("int"):
        if not _INTEGER.fullmatch(value.strip()):
            raise ValueError(f"{value!r} is no integer")
        return int(value)
    return value


# Each has its parameters beside the table, those with ? may be left out, and what it does.
PROCEDURES: dict[str, tuple[str, Callable[[Call], Result]]] = {
    "add_range_partition": ("lower? upper?", _add_range),
    "backup": ("target full?", _backup),
    "compact": ("", _compact),
    "delete_tag": ("name", _delete_tag),
    "drop_range_partition": ("lower? upper?", _drop_range),
    "maintain": ("", _maintain),
    "optimize": ("", _compact),
    "restore": ("target? at? overwrite? version?", _restore),
    "tag": ("name at?", _tag),
    "vacuum": ("", _vacuum),
}
