"""The rows of `spark_steps.py`, its changes and the answers to expect, made by numpy and pyarrow.

States are made by arithmetic on keys, without any of the engines that are measured:

    clean    the loaded rows
    changed  clean, after the upsert, the update and the delete
    grown    changed, and the rows of the small commits
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

KEY = ["l_orderkey", "l_linenumber"]
UPDATED = "l_extendedprice"
SOURCE_FILES = 4
COMMIT_ROWS = 100
_MONEY = pa.decimal128(15, 2)
_WORDS = "carefully final deposits sleep quickly above the ironic packages regular accounts".split()


@dataclass(frozen=True)
class Answers:
    """The answers that every reader must give for one state."""

    count: int
    aggregate: dict[str, tuple[int, int, int]]  # by flag: rows, cents of two columns
    rows: dict[tuple[int, int], tuple[Any, ...] | None]  # by key
    checksum: int  # the sum of CRC-32 of each row as text


def lineitems(numbers: np.ndarray, seed: int) -> pa.Table:
    """Return ten columns of TPC-H's lineitem for rows of these numbers, four to an order."""
    random = np.random.default_rng(seed)
    count = len(numbers)
    flags = pa.array(["A", "N", "R"])
    words = pa.array(_WORDS)
    comment = [words.take(pa.array(random.integers(0, len(words), count))) for _ in range(4)]
    return pa.table(
        {
            "l_orderkey": pa.array(numbers // 4),
            "l_linenumber": pa.array((numbers % 4).astype(np.int32)),
            "l_partkey": pa.array(random.integers(1, 200_000, count)),
            "l_suppkey": pa.array(random.integers(1, 10_000, count)),
            "l_quantity": _money(random.integers(1, 51, count) * 100),
            "l_extendedprice": _money(random.integers(90_000, 10_000_000, count)),
            "l_discount": _money(random.integers(0, 11, count)),
            "l_returnflag": flags.take(pa.array(random.integers(0, 3, count))),
            "l_shipdate": pa.array(random.integers(8036, 10562, count).astype(np.int32)).cast(
                pa.date32()
            ),
            "l_comment": pc.binary_join_element_wise(*comment, " "),
        }
    )


def _money(cents: np.ndarray) -> pa.Array:
    halves = np.zeros((len(cents), 2), np.int64)
    halves[:, 0] = cents
    return pa.Array.from_buffers(_MONEY, len(cents), [None, pa.py_buffer(halves)])


def _numbers(rows: pa.Table) -> np.ndarray:
    return rows["l_orderkey"].to_numpy() * 4 + rows["l_linenumber"].to_numpy()


def make_files(folder: Path, row_count: int, commit_count: int) -> dict[str, Answers]:
    """Write the source, the changes and the states as Parquet; return the answers of each state."""
    random = np.random.default_rng(5)
    clean = lineitems(np.arange(row_count), seed=1)
    step = -(-row_count // SOURCE_FILES)
    for number in range(SOURCE_FILES):
        _write(folder / "source" / f"{number}.parquet", clean.slice(number * step, step))
    tenth = row_count // 10
    old = random.choice(row_count, tenth * 9 // 10, replace=False)
    new = row_count + random.permutation(tenth - len(old))
    upsert = lineitems(random.permutation(np.concatenate([old, new])), seed=2)
    chosen = lineitems(random.choice(row_count, row_count // 20, replace=False), seed=3)
    update = chosen.select([*KEY, UPDATED])
    delete = chosen_keys(random.choice(row_count, row_count // 100, replace=False))
    changed = pa.concat_tables([_without(clean, _numbers(upsert)), upsert])
    changed = _without(_updated(changed, update), _numbers(delete))
    commits = lineitems(2 * row_count + np.arange(commit_count * COMMIT_ROWS), seed=4)
    for name, rows in {"upsert": upsert, "update": update, "delete": delete}.items():
        _write(folder / f"{name}.parquet", rows)
    _write(folder / "commits.parquet", commits)
    states = {"clean": clean, "changed": changed, "grown": pa.concat_tables([changed, commits])}
    # One key of each kind: as loaded, upserted, updated, deleted, new, absent.
    samples = [0, *(int(_numbers(rows)[0]) for rows in (upsert, update, delete))]
    samples += [int(new[0]), 3 * row_count]
    keys = [(number // 4, number % 4) for number in samples]
    for name, rows in states.items():
        _write(folder / name / "0.parquet", rows)
    return {name: _answers(rows, keys) for name, rows in states.items()}


def chosen_keys(numbers: np.ndarray) -> pa.Table:
    """Return a table of the keys of rows with these numbers."""
    return pa.table({KEY[0]: numbers // 4, KEY[1]: (numbers % 4).astype(np.int32)})


def _write(path: Path, rows: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, compression="zstd")


def _without(rows: pa.Table, numbers: np.ndarray) -> pa.Table:
    return rows.filter(pa.array(~np.isin(_numbers(rows), numbers)))


def _updated(rows: pa.Table, update: pa.Table) -> pa.Table:
    numbers = _numbers(rows)
    order = np.argsort(numbers)
    at = order[np.searchsorted(numbers, _numbers(update), sorter=order)]
    cents = _cents(rows[UPDATED])
    cents[at] = _cents(update[UPDATED])
    place = rows.schema.get_field_index(UPDATED)
    return rows.set_column(place, rows.schema.field(UPDATED), _money(cents))


def _cents(column: pa.ChunkedArray) -> np.ndarray:
    halves = [
        np.frombuffer(chunk.buffers()[1], np.int64)[2 * chunk.offset :][: 2 * len(chunk) : 2]
        for chunk in column.chunks
    ]
    return np.concatenate(halves)


def _answers(rows: pa.Table, keys: Sequence[tuple[int, int]]) -> Answers:
    flags = rows["l_returnflag"].to_numpy(zero_copy_only=False)
    quantity, price = _cents(rows["l_quantity"]), _cents(rows["l_extendedprice"])
    groups = {}
    for flag in np.unique(flags):
        is_of_flag = flags == flag
        sums = int(quantity[is_of_flag].sum()), int(price[is_of_flag].sum())
        groups[str(flag)] = (int(is_of_flag.sum()), *sums)
    numbers = _numbers(rows)
    found = {}
    for order, line in keys:
        at = np.flatnonzero(numbers == order * 4 + line)
        found[order, line] = (
            tuple(column[int(at[0])].as_py() for column in rows.columns) if len(at) else None
        )
    texts = [column.cast(pa.string()) for column in rows.columns]
    lines = pc.binary_join_element_wise(*texts, "|").cast(pa.binary())
    checksum = sum(zlib.crc32(line) for chunk in lines.chunks for line in chunk.to_pylist())
    return Answers(rows.num_rows, groups, found, checksum)
