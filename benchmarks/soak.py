"""Many processes on one table for an hour: does anything grow, get slower, or get lost?

    python benchmarks/soak.py [--minutes 60] [--processes 16] [--folder …] [--seed 1]

The amount of rows is constant. A writer has its own keys in one tablet, and a dictionary of them.
Each of its commits upserts and deletes some, and sets its row `TOTAL` to the count and the sum of
all its rows. So every snapshot can be checked: of each writer, count and sum have to agree.

    rows        a session: single operations, one flush
    bulk        batches of upserts and deletes, one commit each
    scan        all rows of the present, in one of three ways; the same moment twice
    travel      a moment within the retention
    changes     a copy of the table, kept up to date by changes alone
    upkeep      maintain with a short grace time, check now and then

The history retention is a minute. Files of superseded versions stay for the grace time, so files
and disk may grow as the writers' turns per second do. A reader's block cache keeps blocks of files
that other processes have removed until it is full, which would take hours: it is small here, so
that other memory is seen. Samples of files, disk, memory, descriptors and latencies are
printed. At the end the table has to equal the writers' dictionaries, and the last third of the
samples has to be like the middle third: otherwise the status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import statistics
import struct
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import kudulite
from kudulite.basefile import block_cache

# Of 16 processes; other numbers are shared out in this order.
ROLES = ("rows", "bulk", "scan", "changes", "upkeep", "travel")
SHARES = {"rows": 5, "bulk": 3, "scan": 3, "changes": 2, "upkeep": 1, "travel": 2}
TABLETS = 4
TOTAL = -1  # the number of the row with a writer's count and sum
ROWS_KEYS, BULK_KEYS = 2_000, 20_000
ROWS_OF_A_FLUSH, ROWS_OF_A_BATCH = 20, 2_000
RETENTION_SECONDS = 60
GRACE_SECONDS = 30.0
TRAVEL_SECONDS = 40.0
WARM_UP_SHARE = 1 / 3
CACHE_BYTES = 8 << 20
# The last third may have so much more than the middle third: a share, and an amount on top.
GROWTH_MAX = {
    "files": (0.25, 50),
    "disk MB": (0.25, 10),
    "memory MB": (0.10, 30),
    "descriptors": (0.10, 20),
    "median ms": (0.50, 5),
    "99 % ms": (1.00, 50),
}

Rows = dict[int, int]


@dataclass(frozen=True)
class Member:
    """One process: its role, its number among the writers or readers, and when it ends."""

    role: str
    number: int
    folder: str
    end: float
    seed: int
    pause_seconds: float


class Work:
    """A member's table, its chance, and the file into which it writes how long each turn took."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.chance = random.Random(f"{member.seed} {member.role} {member.number}")
        self.client = kudulite.connect(member.folder)
        self.table = self.client.table("t")
        self._waits = Path(member.folder, f"waits-{member.role}-{member.number}").open("ab", 0)

    def turns(self, turn: Callable[[], None]) -> int:
        """Take turns until the end; return their number."""
        count = 0
        while time.time() < self.member.end:
            begin = time.perf_counter()
            turn()
            self._waits.write(struct.pack("<d", time.perf_counter() - begin))
            count += 1
            time.sleep(self.member.pause_seconds * self.chance.uniform(0.5, 1.5))
        return count


def write_rows(work: Work) -> dict[str, Any]:
    """Flush single operations through a session."""
    table, number, rows = work.table, work.member.number, dict[int, int]()
    session = work.client.new_session()

    def turn() -> None:
        # The first turn writes all keys, so that the amount of rows is constant.
        count = ROWS_OF_A_FLUSH if rows else ROWS_KEYS
        for key in work.chance.sample(range(ROWS_KEYS), count):
            if key in rows and work.chance.random() < 0.4:
                session.apply(table.new_delete({"writer": number, "number": key}))
                del rows[key]
            else:
                rows[key] = work.chance.randrange(1 << 40)
                row = {"writer": number, "number": key, "v": rows[key], "text": f"row {key}"}
                session.apply(table.new_upsert(row))
        total = {"writer": number, "number": TOTAL, "v": sum(rows.values())}
        session.apply(table.new_upsert(total | {"text": str(len(rows))}))
        session.flush()

    turns = work.turns(turn)
    return {"turns": turns, "rows": rows}


def write_bulk(work: Work) -> dict[str, Any]:
    """Commit batches that upsert and delete."""
    table, number = work.table, work.member.number
    random_numbers = np.random.default_rng(work.chance.randrange(1 << 32))
    values, is_there = np.zeros(BULK_KEYS, np.int64), np.zeros(BULK_KEYS, bool)

    def turn() -> None:
        # The first turn writes all keys, so that the amount of rows is constant.
        count = ROWS_OF_A_BATCH if is_there.any() else BULK_KEYS
        keys = random_numbers.choice(BULK_KEYS, count, replace=False)
        is_deleted = is_there[keys] & (random_numbers.random(count) < 0.4)
        is_there[keys] = ~is_deleted
        values[keys] = random_numbers.integers(0, 1 << 40, count)
        numbers = [*keys.tolist(), TOTAL]
        cells = [*values[keys].tolist(), int(values[is_there].sum())]
        texts = [*(f"row {key}" for key in keys), str(int(is_there.sum()))]
        operations = [*np.where(is_deleted, "delete", "upsert").tolist(), "upsert"]
        batch = {"writer": [number] * len(numbers), "number": numbers, "v": cells, "text": texts}
        rows = pa.table(batch | {"op": operations}, schema=CHANGE_SCHEMA)
        table.apply(rows, operation_column="op")

    turns = work.turns(turn)
    there = np.flatnonzero(is_there)
    return {
        "turns": turns,
        "rows": dict(zip(there.tolist(), values[there].tolist(), strict=True)),
    }


SCHEMA = pa.schema(
    [("writer", pa.int32()), ("number", pa.int64()), ("v", pa.int64()), ("text", pa.string())]
)
CHANGE_SCHEMA = SCHEMA.append(pa.field("op", pa.string()))


def check_totals(rows: pa.Table, what: str) -> None:
    """Compare the rows of each writer in a snapshot with its row TOTAL; AssertionError."""
    writers, numbers, values = (rows[n].to_numpy() for n in ("writer", "number", "v"))
    keys = np.stack([writers.astype(np.int64), numbers])
    assert len(np.unique(keys, axis=1).T) == rows.num_rows, f"{what}: a key twice"
    for place in np.flatnonzero(numbers == TOTAL).tolist():
        own = (writers == writers[place]) & (numbers != TOTAL)
        found = (int(own.sum()), int(values[own].sum()))
        expected = (int(rows["text"][place].as_py()), int(values[place]))
        assert found == expected, f"{what}: writer {writers[place]} has {found}, wrote {expected}"


def scan(work: Work) -> dict[str, Any]:
    """Check all rows of the present, and read the same moment again."""
    table = work.table

    def turn() -> None:
        how = work.chance.choice(("scan", "ordered", "tokens"))
        if how == "tokens":
            tokens = table.scan_tokens(split_size_bytes=1 << 20)
            batches = [batch for token in tokens for batch in token.open()]
            rows = pa.Table.from_batches(batches, SCHEMA_READ)
            moment = tokens[0].timestamp if tokens else None
        else:
            planned = table.scan(ordered=how == "ordered")
            rows, moment = planned.to_arrow(), planned.timestamp
        check_totals(rows, how)
        if moment is not None:
            assert table.scan(at=moment).count() == rows.num_rows, (
                f"{how}: another count at {moment}"
            )

    return {"turns": work.turns(turn)}


SCHEMA_READ = pa.schema(
    [SCHEMA.field(0).with_nullable(False), SCHEMA.field(1).with_nullable(False), *list(SCHEMA)[2:]]
)


def travel(work: Work) -> dict[str, Any]:
    """Check all rows of a moment in the past; moments come back with the same rows."""
    table = work.table
    known: list[tuple[float, int, int, int]] = []

    def turn() -> None:
        now = time.time()
        known[:] = [one for one in known if now - one[0] < TRAVEL_SECONDS]
        if len(known) > 20 and work.chance.random() < 0.8:
            _, moment, count, total = work.chance.choice(known)
        else:
            moment, count, total = int(table.current_timestamp()), -1, 0
        rows = table.scan(at=moment).to_arrow()
        check_totals(rows, f"at {moment}")
        found = (rows.num_rows, int(rows["v"].to_numpy().sum()))
        if count < 0:
            known.append((now, moment, *found))
        else:
            assert found == (count, total), f"{found} at {moment}, before {(count, total)}"

    return {"turns": work.turns(turn)}


def follow(work: Work) -> dict[str, Any]:
    """Keep a copy up to date by changes, and check it."""
    table = work.table
    first = table.scan()
    copy = {(r["writer"], r["number"]): (r["v"], r["text"]) for r in first.to_pylist()}
    last = first.timestamp

    def turn() -> None:
        nonlocal last
        now = table.current_timestamp()
        found = table.changes(last, now).to_arrow()
        columns = ("_change_type", "writer", "number", "v", "text")
        for kind, writer, number, *cells in zip(
            *(found[c].to_pylist() for c in columns), strict=True
        ):
            key = (writer, number)
            assert (key in copy) == (kind != "insert"), f"{kind} of {key} at {now}"
            if kind == "delete":
                del copy[key]
            else:
                copy[key] = tuple(cells)
        last = now
        keys, rows = list(copy), list(copy.values())
        columns_now = [
            [k[0] for k in keys],
            [k[1] for k in keys],
            *([c[i] for c in rows] for i in (0, 1)),
        ]
        check_totals(pa.table(columns_now, schema=SCHEMA), f"changes up to {now}")

    return {"turns": work.turns(turn)}


def look_after(work: Work) -> dict[str, Any]:
    """Maintain the table, and check it now and then."""
    table, turns = work.table, iter(range(1 << 30))

    def turn() -> None:
        table.maintain(GRACE_SECONDS)
        if next(turns) % 30 == 29:
            table.check().raise_if_bad()
        time.sleep(min(5.0, max(0.0, work.member.end - time.time())))

    return {"turns": work.turns(turn)}


WORK: dict[str, Callable[[Work], dict[str, Any]]] = {
    "rows": write_rows,
    "bulk": write_bulk,
    "scan": scan,
    "travel": travel,
    "changes": follow,
    "upkeep": look_after,
}


def run_member(member: Member, pipe: Any) -> None:
    """Work until the end, and send the result or the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    block_cache.BLOCK_CACHE_BYTES_MAX = CACHE_BYTES
    try:
        work = Work(member)
        result = WORK[member.role](work)
        work.client.close()
    except BaseException:
        result = {"problem": traceback.format_exc()}
    pipe.send(result)


# -- samples


@dataclass
class Sample:
    """The figures of one moment; latencies are those since the sample before, by role."""

    seconds: float
    figures: dict[str, float]
    waits: dict[str, tuple[int, float, float]]


class Sampler:
    """Looks at the table's folder, the processes, and the files with waits."""

    def __init__(self, folder: Path, process_ids: list[int]) -> None:
        self._folder, self._process_ids = folder, process_ids
        self._offsets: dict[Path, int] = defaultdict(int)
        self._begin = time.time()
        self.samples: list[Sample] = []

    def take(self) -> Sample:
        """Add a sample."""
        count = size = 0
        for place, _, names in os.walk(self._folder / "t"):
            for name in names:
                with contextlib.suppress(OSError):
                    size += os.stat(os.path.join(place, name)).st_blocks * 512
                    count += 1
        memory, descriptors = 0.0, 0
        for process in self._process_ids:
            with contextlib.suppress(OSError, StopIteration):
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                memory += int(next(x for x in lines if x.startswith("Pss:")).split()[1]) / 1e3
                descriptors += len(os.listdir(f"/proc/{process}/fd"))
        figures = {"files": count, "disk MB": size / 1e6}
        figures |= {"memory MB": memory, "descriptors": descriptors}
        sample = Sample(time.time() - self._begin, figures, self._waits())
        self.samples.append(sample)
        return sample

    def _waits(self) -> dict[str, tuple[int, float, float]]:
        found: dict[str, list[float]] = defaultdict(list)
        for path in self._folder.glob("waits-*"):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                content = file.read()
            content = content[: len(content) // 8 * 8]
            self._offsets[path] += len(content)
            values = (1e3 * value for (value,) in struct.iter_unpack("<d", content))
            found[path.name.split("-")[1]] += values
        return {
            role: (len(v), statistics.median(v), sorted(v)[int(len(v) * 0.99)])
            for role, v in found.items()
            if v
        }

    def growth_problems(self) -> list[str]:
        """Compare the medians of the last third with those of the middle third."""
        end = self.samples[-1].seconds
        middle = [s for s in self.samples if end * WARM_UP_SHARE < s.seconds <= end * 2 / 3]
        last = [s for s in self.samples if s.seconds > end * 2 / 3]
        if len(middle) < 3 or len(last) < 3:
            return ["too few samples to compare"]
        problems = []
        for name in self.samples[0].figures:
            values = [[s.figures[name] for s in part] for part in (middle, last)]
            if name in ("files", "disk MB"):
                values[0] = [value * self._faster(middle, last) for value in values[0]]
            problems += self._compare(name, name, *values)
        for role in WORK:
            for place, name in ((1, "median ms"), (2, "99 % ms")):
                values = [
                    [s.waits[role][place] for s in p if role in s.waits] for p in (middle, last)
                ]
                if all(values) and role != "upkeep":
                    problems += self._compare(name, f"{role}: {name}", *values)
        return problems

    @staticmethod
    def _faster(middle: list[Sample], last: list[Sample]) -> float:
        """How much faster the bulk writers were in the last third, at least 1."""
        turns = [
            [s.waits["bulk"][0] if "bulk" in s.waits else 0 for s in p] for p in (middle, last)
        ]
        return max(1.0, statistics.mean(turns[1]) / max(1.0, statistics.mean(turns[0])))

    def _compare(self, kind: str, name: str, one: list[float], other: list[float]) -> list[str]:
        before, after = statistics.median(one), statistics.median(other)
        share, amount = GROWTH_MAX[kind]
        is_flat = after <= before * (1 + share) + amount
        print(f"{name:<22}{before:>10,.1f}{after:>10,.1f}  {'flat' if is_flat else 'GROWS'}")
        return [] if is_flat else [f"{name} grew from {before:,.1f} to {after:,.1f}"]


def show(sample: Sample, is_first: bool) -> None:
    """Print one line; latencies as median/99 % in ms."""
    if is_first:
        heads = ("second", *sample.figures, *(f"{role} ms" for role in ROLES))
        print("".join(f"{head:>13}" for head in heads))
    waits = (sample.waits.get(role) for role in ROLES)
    cells = [f"{w[1]:,.0f}/{w[2]:,.0f}" if w else "" for w in waits]
    figures = [f"{value:,.0f}" for value in (sample.seconds, *sample.figures.values())]
    print("".join(f"{cell:>13}" for cell in (*figures, *cells)), flush=True)


# -- the run


def create(folder: Path) -> kudulite.Table:
    """The empty table, hashed by writer, with a short retention."""
    client = kudulite.connect(folder, background_maintenance=False)
    layout: dict[str, Any] = {"hash_partitions": [(["writer"], TABLETS)]}
    table = client.create_table("t", SCHEMA, primary_key=["writer", "number"], **layout)
    client.new_table_alterer(table).set_history_retention(RETENTION_SECONDS).alter()
    return client.table("t")


def members(
    folder: Path, process_count: int, seconds: float, seed: int, pause: float
) -> list[Member]:
    """The processes; writers have numbers from 0 on."""
    counts = dict.fromkeys(ROLES, 0)
    while sum(counts.values()) < process_count:
        # The role that lacks most of its share; each has one before any has two.
        role = min(ROLES, key=lambda r: (counts[r] > 0, counts[r] / SHARES[r]))
        counts[role] += 1
    writers = [role for role in ("rows", "bulk") for _ in range(counts[role])]
    readers = [role for role in ROLES[2:] for _ in range(counts[role])]
    end = time.time() + seconds
    return [
        Member(role, number, str(folder), end, seed, pause)
        for number, role in enumerate((*writers, *readers))
    ]


def final_problems(folder: Path, results: dict[Member, dict[str, Any]]) -> list[str]:
    """Compare the table with the writers' dictionaries, in a client that has seen nothing."""
    problems = [
        f"{member.role} {member.number}: {result['problem']}"
        for member, result in results.items()
        if "problem" in result
    ]
    table = kudulite.connect(folder, background_maintenance=False).table("t")
    table.check().raise_if_bad()
    rows = table.scan().to_arrow()
    check_totals(rows, "at the end")
    found: dict[int, Rows] = defaultdict(dict)
    for writer, number, v in zip(
        *(rows[n].to_pylist() for n in ("writer", "number", "v")), strict=True
    ):
        if number != TOTAL:
            found[writer][number] = v
    for member, result in results.items():
        if "rows" in result and found[member.number] != result["rows"]:
            problems.append(f"{member.role} {member.number}: other rows than it wrote")
    return problems


def run(folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Run all processes, sample, and return the problems."""
    create(folder)
    seconds = arguments.minutes * 60
    context = multiprocessing.get_context("spawn")
    running = {}
    for member in members(folder, arguments.processes, seconds, arguments.seed, arguments.pause):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=run_member, args=(member, writer), daemon=True)
        process.start()
        writer.close()
        running[member] = (process, reader)
    sampler = Sampler(folder, [process.pid or 0 for process, _ in running.values()])
    results: dict[Member, dict[str, Any]] = {}
    end = next(iter(running)).end
    while time.time() < end and not results:
        time.sleep(max(0.0, min(seconds / arguments.samples, end - time.time())))
        if time.time() < end:
            show(sampler.take(), len(sampler.samples) == 1)
        # Members end before their time only with an error.
        for member, (_, reader) in running.items():
            if time.time() < end and reader.poll():
                results[member] = reader.recv()
                print(results[member].get("problem"))
    for member, (process, reader) in running.items():
        if member not in results:
            with contextlib.suppress(EOFError):
                is_there = reader.poll(arguments.join_seconds)
                results[member] = reader.recv() if is_there else {"problem": "it did not end"}
        results.setdefault(member, {"problem": "it died"})
        process.kill()
        process.join()
    turns: dict[str, int] = defaultdict(int)
    for member, result in results.items():
        turns[member.role] += result.get("turns", 0)
    print("turns: " + ", ".join(f"{turns[role]:,} {role}" for role in WORK))
    return final_problems(folder, results) + sampler.growth_problems()


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.2, help="seconds after each turn")
    parser.add_argument("--folder", help="where the table is made (default: the system's)")
    parser.add_argument("--join-seconds", type=float, default=120.0)
    arguments = parser.parse_args()
    print(
        f"{arguments.processes} processes for {arguments.minutes:g} minutes, {os.cpu_count()} cores"
    )
    if arguments.folder:
        Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kudulite-soak-", dir=arguments.folder) as folder:
        problems = run(Path(folder), arguments)
    print("\n".join(problems) or "every row is there, no snapshot was torn, and nothing grew")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
