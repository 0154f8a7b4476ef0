"""Trips: how many files of the engine a call enters, a measure of how far a reader has to walk.

    python -m tests.structure.trips            every trip, with its files
    python -m tests.structure.trips get        one trip

A file is entered when one of its functions runs, in any thread that the call starts. Files named
`__init__.py` do not count, nor does progress.py, which only shows the call: it changes nothing that
a reader follows. Every call runs once before it is measured, so that imports and the
first opening of the table are not part of a trip. A scan and `changes` are measured right after a
write: they find a new version and open its tablets.
"""

import gc
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyarrow as pa

import kudulite

ROOT = Path(kudulite.__file__).parent
NOT_COUNTED = ("__init__.py", "progress.py")
ROW_COUNT = 10_000
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])


def files_entered(call: Callable[[], object]) -> list[str]:
    """Return the files below kudulite/ whose functions ran during a call, sorted."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            names.add(frame.f_code.co_filename)

    # A finalizer of an object that an earlier call has left behind is not part of this one.
    gc.collect()
    gc.disable()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        gc.enable()
    inside = [Path(name).relative_to(ROOT) for name in names if name.startswith(f"{ROOT}/")]
    return sorted(str(path) for path in inside if path.name not in NOT_COUNTED)


class Trips:
    """A table of two tablets in `folder`, loaded and upserted in bulk, and the calls to measure.

    Rows are in memory only for the session row and the flush.
    """

    def __init__(self, folder: Path) -> None:
        client = kudulite.connect(folder, background_maintenance=False)
        self.table = client.create_table(
            "trips", SCHEMA, primary_key="id", hash_partitions=[(["id"], 2)]
        )
        self.session = client.new_session()
        self.table.insert(rows(0, 2 * ROW_COUNT))
        self.start = self.table.current_timestamp()
        self._next = ROW_COUNT
        self.bulk_upsert()

    def bulk_upsert(self) -> None:
        """Write 10,000 rows into two tablets, half of them with keys that are there."""
        self._next += ROW_COUNT // 2
        self.table.upsert(rows(self._next, ROW_COUNT))

    def scan(self) -> None:
        """Read the rows that a filter leaves, of base data and deltas."""
        assert self.table.scan(where=self.table["value"] > 100.0).to_arrow().num_rows > 0

    def session_row(self) -> None:
        """Upsert a row through a session, durably."""
        self.session.apply(self.table.new_upsert({"id": 7, "name": "seven", "value": 7.5}))
        self.session.flush()

    def get(self) -> None:
        """Look a row up by its key."""
        assert self.table.get(11) == {"id": 11, "name": "row 11", "value": 11.0}

    def flush(self) -> None:
        """Flush an inserted and an updated row from memory to disk."""
        assert self.table.flush() > 0

    def flush_deltas(self) -> None:
        """Flush an updated row: a DeltaMemStore, and no MemRowSet."""
        assert self.table.flush() > 0

    def changes(self) -> None:
        """Read what changed since the table was filled."""
        assert self.table.changes(self.start).to_arrow().num_rows > 0

    def before_scan(self) -> None:
        """Publish a new version."""
        self.bulk_upsert()

    before_changes = before_scan

    def before_flush(self) -> None:
        """Upsert an old and a new row through a session."""
        self._next += ROW_COUNT
        for key in (8, self._next):
            self.session.apply(self.table.new_upsert({"id": key, "name": "x", "value": 101.0}))
        self.session.flush()

    def before_flush_deltas(self) -> None:
        """Upsert an old row through a session."""
        self.session.apply(self.table.new_upsert({"id": 8, "name": "y", "value": 102.0}))
        self.session.flush()


def rows(start: int, count: int) -> pa.Table:
    """Return rows with the keys from `start` on."""
    keys = range(start, start + count)
    return pa.table(
        {"id": keys, "name": [f"row {key}" for key in keys], "value": [float(key) for key in keys]},
        schema=SCHEMA,
    )


TRIPS = ("bulk_upsert", "scan", "session_row", "get", "flush", "flush_deltas", "changes")


def trip(folder: Path, name: str) -> list[str]:
    """Return the files that a trip enters, measured in a new table in `folder`."""
    trips = Trips(folder)
    entered: list[str] = []
    for _ in range(2):
        getattr(trips, f"before_{name}", lambda: None)()
        entered = files_entered(getattr(trips, name))
    return entered


def main(names: list[str]) -> None:
    """Print each trip, with the files that it enters."""
    for name in names or TRIPS:
        with tempfile.TemporaryDirectory() as folder:
            entered = trip(Path(folder), name)
        print(f"{name}: {len(entered)} files")  # noqa: T201
        print("".join(f"    {path}\n" for path in entered))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
