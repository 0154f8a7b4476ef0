"""A process that writes to a table again and again and prints what happened; started by tests.

    python -m tests.support.machines.upsert_process FOLDER WRITER_NUMBER WRITE_COUNT OPERATION KEYS

KEYS is `same` or `disjoint`, or `repeated` for a table whose key is not unique.

It waits for a line on its input, so that all processes of a test begin together.
"""

import json
import sys
from collections.abc import Sequence

import kudulite
from kudulite.errors import RowError

ROWS = 10


def keys_of(writer: int, write: int, count: int, keys: str, operation: str) -> Sequence[int]:
    """The ten keys of one write: those of all writers, or some that nobody else writes.

    Of repeated ones, every other write has one key, so that its rows go through a tablet's log.
    """
    if keys == "repeated":
        return [write % 4] * ROWS if write % 2 else [k % 4 for k in range(ROWS)]
    if keys == "disjoint":
        start = (writer * count + write) * ROWS
        return range(start, start + ROWS)
    if operation == "insert":
        return range(write * ROWS, write * ROWS + ROWS)
    return range(ROWS)


def main() -> None:
    """Write and print a JSON list of {timestamp, inserted, updated, value} or {refused}."""
    folder, operation, keys = sys.argv[1], *sys.argv[4:]
    writer, count = map(int, sys.argv[2:4])
    table = kudulite.open_table(folder)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    results = []
    for write in range(count):
        value = writer * 1000 + write
        rows = [{"k": k, "v": value} for k in keys_of(writer, write, count, keys, operation)]
        try:
            done = getattr(table, operation)(rows)
        except RowError as error:
            results.append({"refused": error.reason, "value": value})
            continue
        results.append(
            {
                "timestamp": done.timestamp,
                "inserted": done.inserted,
                "updated": done.updated,
                "value": value,
            }
        )
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
