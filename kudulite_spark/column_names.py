"""Column names in any case, as Spark SQL finds them.

An exact match wins; otherwise the one name that is equal in any case. A table may have `a` and `A`:
then `a` means `a`, and a name that is neither must not be guessed. Spark does not tell a Python
source its setting `spark.sql.caseSensitive`, so the rule is one and the same with both values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kudulite.errors import ColumnNotFoundError, SchemaError
from kudulite_spark.options import WriteOptions


def find_name(name: str, names: Sequence[str], where: str) -> str | None:
    """Return which of `names` is meant by `name`, None if none is; SchemaError if several may be.

    `where` begins the message, as in "table 't'"."""
    if name in names:
        return name
    alike = [own for own in names if own.lower() == name.lower()]
    if len(alike) > 1:
        raise SchemaError(
            f"{where}: column {name!r} is ambiguous: it may be {' or '.join(map(repr, alike))};"
            " write one of these exactly"
        )
    return alike[0] if alike else None


def find_all(wanted: Iterable[str], names: Sequence[str], where: str) -> list[str]:
    """Return what `wanted` mean among `names`; ColumnNotFoundError lists those."""
    found = []
    for name in wanted:
        own = find_name(name, names, where)
        if own is None:
            raise ColumnNotFoundError(f"{where}: no column {name!r}; columns: {', '.join(names)}")
        found.append(own)
    return found


def with_layout_names(options: WriteOptions, names: Sequence[str]) -> WriteOptions:
    """Return the options with the columns of key and partitions called as in `names`.

    A name that is not there stays, for whoever checks the layout to refuse."""

    def own(option: str, given: Iterable[str]) -> tuple[str, ...]:
        return tuple(find_name(name, names, f"option {option!r}") or name for name in given)

    key, hashes, ranges = options.primary_key, options.hash_partitions, options.range_partitions
    if key is not None:
        key = own("primaryKey", key)
    if hashes is not None:
        hashes = tuple((own("hashPartitions", columns), count) for columns, count in hashes)
    if ranges is not None:
        ranges = {**ranges, "columns": list(own("rangePartitions", ranges["columns"]))}
    return replace(options, primary_key=key, hash_partitions=hashes, range_partitions=ranges)
