"""Workload: generated rows and writes in a folder, and the results that every store must return.

    folder/rows.arrow  upsert.arrow  update.arrow  delete.arrow   the writes, in this order
           single.arrow  commits.arrow     writes of one row, and commits of COMMIT_ROWS rows
           series.arrow                    rows of the second table
           plan.json                                      the reads, and their expected results

Expected results are computed with numpy and pyarrow on the generated rows, and no store takes part.
The content of a table is its number of rows and a digest: the sum over all rows of a hash of all
cells. It does not depend on the order of rows, and a cell in a wrong row changes it.

Keys are multiples of 3, so that a key is absent beside each that is present. Nine tenths of the
upserted rows have keys of loaded rows. Updated and deleted rows are loaded ones.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEY = "key"
UPDATED = "price"
KEY_STEP = 3
RANGE_KEYS = 1_000
RANGE_COUNT = 20
MANY_KEYS = 10_000
GET_KEYS = 200
SINGLE_ROWS = 200
COMMIT_ROWS = 100
COMMIT_COUNT = 100
SERIES_COUNT = 100
SERIES_READ = 20
MODES = ("AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK")
FLAGS = ("A", "N", "R")
SCHEMA = pa.schema(
    {
        KEY: pa.int64(),
        "part": pa.int64(),
        "supplier": pa.int32(),
        "quantity": pa.float64(),
        UPDATED: pa.float64(),
        "discount": pa.float64(),
        "flag": pa.string(),
        "mode": pa.string(),
        "shipped": pa.date32(),
        "comment": pa.string(),
    }
)
SERIES_SCHEMA = pa.schema(
    {"series": pa.int64(), "time": pa.int64(), "value": pa.float64(), "low": pa.float64()}
)
WRITES = ("rows", "upsert", "update", "delete", "single", "commits", "series")

# mode -> (row count, sum of quantity, sum of price)
Aggregate = dict[str, tuple[int, float, float]]


@dataclass(frozen=True)
class Content:
    """The rows of a table, in any order."""

    row_count: int
    digest: int


@dataclass(frozen=True, kw_only=True)
class State:
    """A table at one moment, and the reads that are compared."""

    whole: Content
    of_ranges: list[Content]
    of_keys: Content
    of_gets: list[Content]
    aggregate: Aggregate


@dataclass(frozen=True, kw_only=True)
class ChangedRows:
    """Changes of a window: rows as they are at its end, and the keys of deleted rows."""

    written: Content
    deleted: Content


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The reads, the states of the table, and the changes. Ranges and `times` end exclusive."""

    row_count: int
    ranges: list[tuple[int, int]]
    keys: list[int]
    get_keys: list[int]
    series: list[int]
    times: tuple[int, int]
    states: dict[str, State]
    changes: dict[str, ChangedRows]
    of_series: list[Content]


class Workload:
    """A workload in a folder: its plan, and its writes as Arrow tables in memory."""

    def __init__(self, folder: Path) -> None:
        self.plan = read_plan(folder)
        self.tables = {name: _read_arrow(folder / f"{name}.arrow") for name in WRITES}

    @property
    def nbytes(self) -> int:
        """The memory of all rows that the caller holds."""
        return sum(table.nbytes for table in self.tables.values())


def read_plan(folder: Path) -> Plan:
    """Read the plan of a workload."""
    body = json.loads((folder / "plan.json").read_text())
    body["states"] = {name: _state(found) for name, found in body["states"].items()}
    body["changes"] = {name: _changed_rows(found) for name, found in body["changes"].items()}
    body["of_series"] = [Content(**found) for found in body["of_series"]]
    return Plan(**body)


def content_of(table: pa.Table) -> Content:
    """Return the number of rows and their digest, which does not depend on their order."""
    hashes = np.zeros(table.num_rows, dtype=np.uint64)
    for name, column in zip(table.column_names, table.columns, strict=True):
        assert column.null_count == 0, f"{name} has nulls"
        hashes = _mixed(hashes + _bits(column))
    return Content(table.num_rows, int(hashes.sum(dtype=np.uint64)))


def aggregate_of(table: pa.Table) -> Aggregate:
    """Return the aggregate of three columns, by pyarrow."""
    grouped = table.group_by("mode").aggregate(
        [("mode", "count"), ("quantity", "sum"), ("price", "sum")]
    )
    return {
        row["mode"]: (row["mode_count"], row["quantity_sum"], row["price_sum"])
        for row in grouped.to_pylist()
    }


def make_rows(keys: np.ndarray, seed: int) -> pa.Table:
    """Return ten columns like those of TPC-H's lineitem, with these keys in this order."""
    random, count = np.random.default_rng(seed), len(keys)

    def choices(values: pa.Array) -> pa.Array:
        return values.take(pa.array(random.integers(0, len(values), count)))

    columns = [
        keys,
        random.integers(1, 200_000, count),
        random.integers(1, 10_000, count).astype(np.int32),
        random.integers(1, 51, count).astype(np.float64),
        np.round(random.random(count) * 100_000, 2),
        random.integers(0, 11, count) / 100,
        choices(pa.array(FLAGS)),
        choices(pa.array(MODES)),
        pa.array(random.integers(8_000, 10_600, count).astype(np.int32)).cast(pa.date32()),
        choices(comments()),
    ]
    return pa.table([pa.array(column) for column in columns], schema=SCHEMA)


@functools.cache
def comments() -> pa.Array:
    """Return the different comments; made once: they took an eighth of the time of a load."""
    words = ["carefully", "quickly", "furiously", "slyly", "blithely", "even", "final", "regular"]
    nouns = ["deposits", "requests", "accounts", "packages", "theodolites", "foxes", "ideas"]
    texts = (f"{words[i % 8]} {words[i // 8 % 8]} {nouns[i % 7]} {i:x}" for i in range(200_000))
    return pa.array(texts, pa.string())


def make_workload(folder: Path, row_count: int, in_key_order: bool = False) -> None:
    """Write the workload of `row_count` loaded rows into an empty folder."""
    random = np.random.default_rng(7)
    keys = random.permutation(row_count).astype(np.int64) * KEY_STEP
    present = random.choice(keys, row_count * 9 // 100, replace=False)
    absent = random.choice(row_count, row_count // 100, replace=False) * KEY_STEP + 1
    updated = random.choice(keys, row_count // 20, replace=False)
    deleted = random.choice(keys, row_count // 100, replace=False)
    # Each key once, so that every row can be read back; not from `random`, which draws the reads.
    commit_rows = min(COMMIT_COUNT * COMMIT_ROWS, row_count)
    committed = np.random.default_rng(8).choice(keys, commit_rows, replace=False)
    writes = {
        "rows": make_rows(np.sort(keys) if in_key_order else keys, 1),
        "upsert": make_rows(random.permutation(np.concatenate([present, absent])), 2),
        "update": pa.table({KEY: updated, UPDATED: np.round(random.random(len(updated)) * 9, 3)}),
        "delete": pa.table({KEY: deleted}),
        "single": make_rows(random.choice(keys, SINGLE_ROWS, replace=False) + 2, 3),
        "commits": make_rows(committed, 4),
        "series": make_series(row_count // 5),
    }
    for name, table in writes.items():
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=1 << 20)
    plan = _plan(writes, random)
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))


def make_series(row_count: int) -> pa.Table:
    """Return measurements of 100 series in the order of time, as they would arrive."""
    random, number = np.random.default_rng(4), np.arange(row_count)
    values = random.random(row_count)
    columns = [number % SERIES_COUNT, number // SERIES_COUNT, values, values - 1]
    return pa.table([pa.array(column) for column in columns], schema=SERIES_SCHEMA)


def _plan(writes: dict[str, pa.Table], random: np.random.Generator) -> Plan:
    keys = writes["rows"][KEY].to_numpy()
    firsts = random.permutation(np.linspace(0, len(keys) - RANGE_KEYS, RANGE_COUNT, dtype=np.int64))
    ranges = [(first * KEY_STEP, (first + RANGE_KEYS) * KEY_STEP) for first in firsts.tolist()]
    # Found in every state: rows that are read by key are never deleted.
    living = np.setdiff1d(keys, writes["delete"][KEY].to_numpy())
    many = random.choice(living, min(MANY_KEYS, len(living)), replace=False)
    gets = random.permutation(living[np.linspace(0, len(living) - 1, GET_KEYS, dtype=np.int64)])
    states = {"loaded": writes["rows"]}
    for before, after, write in (
        ("loaded", "upserted", "upsert"),
        ("upserted", "updated", "update"),
        ("updated", "deleted", "delete"),
    ):
        states[after] = _applied(states[before], write, writes[write])
    times, of_series = _plan_series(writes["series"])
    written = pa.chunked_array([*writes["upsert"][KEY].chunks, *writes["update"][KEY].chunks])
    return Plan(
        row_count=len(keys),
        ranges=ranges,
        keys=many.tolist(),
        get_keys=gets.tolist(),
        series=list(range(SERIES_READ)),
        times=times,
        states={
            name: State(
                whole=content_of(table),
                of_ranges=_of_ranges(table, ranges),
                of_keys=content_of(_of_keys(table, many)),
                of_gets=_of_ranges(table, [(key, key + 1) for key in gets]),
                aggregate=aggregate_of(table),
            )
            for name, table in states.items()
        },
        changes={
            "update": _changes(states["updated"], writes["update"][KEY], writes["delete"][:0]),
            "all": _changes(states["deleted"], written, writes["delete"]),
        },
        of_series=of_series,
    )


def _plan_series(rows: pa.Table) -> tuple[tuple[int, int], list[Content]]:
    """Return the times to read of some series, and the contents of those reads."""
    count = rows.num_rows // SERIES_COUNT
    start, end = count // 3, count // 3 + min(RANGE_KEYS, count // 2)
    is_in_time = pc.and_(pc.greater_equal(rows["time"], start), pc.less(rows["time"], end))
    read = rows.filter(is_in_time)
    parts = [read.filter(pc.equal(read["series"], series)) for series in range(SERIES_READ)]
    return (start, end), [content_of(part) for part in parts]


def _applied(table: pa.Table, write: str, data: pa.Table) -> pa.Table:
    """Return the rows after one of the three writes."""
    if write == "update":
        order = np.argsort(data[KEY].to_numpy())
        keys, values = data[KEY].to_numpy()[order], data[UPDATED].to_numpy()[order]
        found = np.searchsorted(keys, table[KEY].to_numpy()).clip(max=len(keys) - 1)
        is_hit = keys[found] == table[KEY].to_numpy()
        merged = np.where(is_hit, values[found], table[UPDATED].to_numpy())
        return table.set_column(table.column_names.index(UPDATED), UPDATED, pa.array(merged))
    kept = table.filter(pc.invert(pc.is_in(table[KEY], data[KEY])))
    return pa.concat_tables([kept, data]) if write == "upsert" else kept


def _changes(end: pa.Table, written: pa.ChunkedArray, deleted: pa.Table) -> ChangedRows:
    return ChangedRows(
        written=content_of(end.filter(pc.is_in(end[KEY], written))), deleted=content_of(deleted)
    )


def _of_ranges(table: pa.Table, ranges: list[tuple[int, int]]) -> list[Content]:
    lows, highs = np.array(sorted(ranges)).T
    keys = table[KEY].to_numpy()
    place = np.searchsorted(lows, keys, side="right") - 1
    read = table.filter(pa.array((place >= 0) & (keys < highs[place]))).sort_by(KEY)
    bounds = np.searchsorted(read[KEY].to_numpy(), np.array(ranges))
    return [content_of(read.slice(low, high - low)) for low, high in bounds.tolist()]


def _of_keys(table: pa.Table, keys: np.ndarray) -> pa.Table:
    return table.filter(pc.is_in(table[KEY], pa.array(keys)))


def _bits(column: pa.ChunkedArray) -> np.ndarray:
    """Return uint64[n]: the value of each cell, of a text a hash of it."""
    if pa.types.is_string(column.type):
        coded = column.combine_chunks().dictionary_encode()
        coded = coded.combine_chunks() if isinstance(coded, pa.ChunkedArray) else coded
        hashes = [
            int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
            for text in coded.dictionary.to_pylist()
        ]
        return np.array(hashes, dtype=np.uint64)[coded.indices.to_numpy()]
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    values = column.to_numpy()
    wide = values if values.dtype == np.float64 else values.astype(np.int64)
    return wide.view(np.uint64)


def _mixed(values: np.ndarray) -> np.ndarray:
    """Return the values with their bits mixed, as splitmix64 does it."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _read_arrow(path: Path) -> pa.Table:
    """Read a file into memory: a mapped one would not be memory of the process."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def _state(body: dict) -> State:
    return State(
        whole=Content(**body["whole"]),
        of_ranges=[Content(**found) for found in body["of_ranges"]],
        of_keys=Content(**body["of_keys"]),
        of_gets=[Content(**found) for found in body["of_gets"]],
        aggregate={mode: tuple(row) for mode, row in body["aggregate"].items()},
    )


def _changed_rows(body: dict) -> ChangedRows:
    return ChangedRows(**{name: Content(**found) for name, found in body.items()})
