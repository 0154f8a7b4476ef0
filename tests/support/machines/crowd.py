"""Processes that write to and read from one table at the same time, and check what they see.

The key is (writer, number); a writer's rows are in one tablet. A writer's batch b, counted from 1,
adds `size` rows (writer, (b - 1) * size …) and sets its RING rows, whose numbers are below 0, to b.
So a snapshot that shows b in one of a writer's ring rows shows it in all of them, and exactly the
b * size rows of its first b batches: anything else is a torn, lost or doubled batch. A bulk writer
writes the same batch for two writers in different tablets, which must be level in every snapshot.
Now and then a session also inserts a row of the writer RACE, which another one may have inserted:
of each such row one session must have been told that it is its own.

With collectors or purgers (`stalls`) the publications of all members, and their new files, stand
still now and then, and sessions flush their tablet all the time. Collectors remove superseded
versions and files without grace. A purger does the same when it has purged the rows that it has
just written, those of the VICTIMS, which lie among the rows of others. Only a scanner may meet a
removed file, and begins its turn again; a bulk write may find a conflict.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import kudulite
from kudulite.client.client import Client
from kudulite.client.table import Table
from kudulite.errors import ConflictError, KuduliteError, RowError, StorageError
from kudulite.table.memory_flush import flush_table
from kudulite.upkeep.garbage_collection import _collect_versions, collect_garbage
from tests.support.doubles.pausing_storage import StallingStorage
from tests.support.tables.core_tables import environment

RING = 4  # rows that each batch of a writer sets
RACE = -1  # the "writer" whose rows every session tries to insert
RACE_EVERY = 4
LEVELS = (-10, -11, -12, -15)  # the "writers" of which each tablet has one
VICTIMS = range(-9, RACE)  # "writers" whose rows purgers write and purge
TABLETS = 4
SECOND = 500  # the second writer number of a bulk writer is the first and this
SESSION_ROWS, BULK_ROWS = 4, 500
FLUSH_EVERY, STALLED_FLUSH_EVERY = 100, 2
COLLECTIONS = 30  # of a collector's turn
GRACE_SECONDS = 60.0  # far longer than a scan here
# pyarrow imports pandas, where it is, at the first conversion of Python objects.
PRELOADED = ["kudulite", "pandas", "tests.support.machines.crowd"]
Result = TypeVar("Result")
ROLES = ("session", "bulk", "scanner", "maintainer", "collector", "purger")


@dataclass(frozen=True)
class Member:
    """One process: `role` of ROLES; it ends after `turns`, or after `seconds`.

    `sessions` is how many session writers the crowd has: it says how large a batch of a writer is.
    A bulk writer and a scanner rest for `pause_seconds` after each turn.
    """

    role: str
    number: int
    folder: str
    turns: int | None
    seconds: float | None
    sessions: int
    pause_seconds: float = 0.0
    stalls: bool = False
    acknowledged: Any = None  # of a mortal session writer: its last batch, shared with the crowd


@dataclass
class Told:
    """The report of a member at its end."""

    role: str
    number: int
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # when each wait ended, by one clock for all
    won: list[int] = field(default_factory=list)
    problem: str = ""

    def wait_for(self, work: Callable[[], Result]) -> Result:
        """Do a part of the work that others may keep waiting, and note how long it took."""
        begin = time.perf_counter()
        result = work()
        self.ends.append(time.perf_counter())
        self.waits.append(self.ends[-1] - begin)
        return result


def create(folder: Path) -> Table:
    """The empty table, hashed by writer to four tablets."""
    columns = [
        kudulite.column("writer", kudulite.int32),
        kudulite.column("number", kudulite.int64),
        kudulite.column("batch", kudulite.int64),
        kudulite.column("text", kudulite.string),
    ]
    table = Client(folder, environment()).create_table(
        "t", kudulite.schema(columns, ["writer", "number"]), hash_partitions=[(["writer"], TABLETS)]
    )
    levels = table.tablet_index([{"writer": writer, "number": 0} for writer in LEVELS])
    assert sorted(levels.to_pylist()) == [*range(TABLETS)], "each tablet has a level"
    return table


def batch_rows(writer: int, batch: int, size: int) -> dict[str, list]:
    """The rows of a batch, by column; the last ones are those of the levels."""
    first = (batch - 1) * size
    numbers = [*range(first, first + size), *range(-RING, 0), *(writer for _ in LEVELS)]
    count = len(numbers)
    writers = [*(writer for _ in range(count - len(LEVELS))), *LEVELS]
    texts = [f"row {number} of writer {writer}" for number in numbers]
    return {"writer": writers, "number": numbers, "batch": [batch] * count, "text": texts}


def batch_size(writer: int, sessions: int) -> int:
    """New rows of each batch of a writer."""
    return SESSION_ROWS if writer < sessions else BULK_ROWS


def problems_of(rows: pa.Table, sessions: int) -> list[str]:
    """The problems of a snapshot of the columns writer, number, batch."""
    writers, numbers, batches = (rows.column(i).to_numpy() for i in range(3))
    problems = []
    reached: dict[int, int] = {}
    for writer in np.unique(writers).tolist():
        mine = writers == writer
        found = np.sort(numbers[mine])
        if np.any(found[1:] == found[:-1]):
            problems.append(f"writer {writer}: a key twice")
        if writer < 0:
            continue
        ring = batches[mine & (numbers < 0)]
        if len(ring) != RING or len(np.unique(ring)) != 1:
            problems.append(f"writer {writer}: ring rows {ring.tolist()}")
            continue
        batch = reached[writer] = int(ring[0])
        expected = np.arange(-RING, batch * batch_size(writer, sessions))
        if not np.array_equal(found, expected):
            problems.append(
                f"writer {writer}: {len(found)} rows from {found[0]} to {found[-1]},"
                f" expected {len(expected)} at batch {batch}"
            )
    for writer, batch in reached.items():
        if writer >= SECOND and reached.get(writer - SECOND) != batch:
            problems.append(f"writer {writer} is at batch {batch}, its twin is not: {reached}")
    return problems + _uneven_levels(writers, numbers, batches, reached)


def _uneven_levels(
    writers: np.ndarray, numbers: np.ndarray, batches: np.ndarray, reached: Mapping[int, int]
) -> list[str]:
    """The writers of which a tablet has another commit than the others, or than their ring."""
    levels: dict[int, list[int]] = {writer: [] for writer in reached}
    is_level = np.isin(writers, LEVELS)
    for writer, batch in zip(numbers[is_level].tolist(), batches[is_level].tolist(), strict=True):
        levels.setdefault(writer, []).append(batch)
    return [
        f"writer {writer}: levels {found} at batch {reached.get(writer)}"
        for writer, found in levels.items()
        if found != [reached.get(writer)] * TABLETS
    ]


def write_sessions(member: Member, table: Table, client: Client, told: Told) -> None:
    """Flush batch after batch through a session."""
    session = client.new_session()
    place = table.tablet_index([{"writer": member.number, "number": 0}])[0].as_py()
    tablet_id = table.tablet_ids[place]
    shared = member.acknowledged
    start = 1 if shared is None else _found_batch(table, member.number, shared.value) + 1
    for batch in _turns(member, start):
        rows = batch_rows(member.number, batch, SESSION_ROWS)
        for row in zip(*rows.values(), strict=True):
            session.apply(table.new_upsert(dict(zip(rows, row, strict=True))))
        has_race = batch % RACE_EVERY == 0 and shared is None
        if has_race:
            race = {"writer": RACE, "number": batch, "batch": member.number}
            session.apply(table.new_insert(race))
        has_lost = told.wait_for(partial(_flush, session))
        if has_race and not has_lost:
            told.won.append(batch)
        if shared is not None:
            shared.value = batch
        told.batches, told.rows = batch, told.rows + len(rows["number"])
        if member.stalls and batch % STALLED_FLUSH_EVERY == 0:
            flush_table(table._store, [tablet_id])
        elif batch % FLUSH_EVERY == 0 and member.number == 0:
            table.flush()
    told.batches = max(told.batches, start - 1)


def _found_batch(table: Table, writer: int, acknowledged: int) -> int:
    """The batch that a killed writer reached: the last acknowledged one, or the one after it."""
    row = table.get((writer, -1))
    found = 0 if row is None else row["batch"]
    assert acknowledged <= found <= acknowledged + 1, f"batch {found}, {acknowledged} acknowledged"
    return found


def _flush(session: Any) -> bool:
    """Flush; returns whether the inserted row was there already, which is the one error allowed."""
    try:
        session.flush()
    except RowError:
        errors, _ = session.get_pending_errors()
        assert [error.reason for error in errors] == [RowError.REASON_ALREADY_PRESENT]
        return True
    return False


def write_bulk(member: Member, table: Table, told: Told) -> None:
    """Commit batch after batch, each for two writers, in one write."""
    for batch in _turns(member):
        parts = [
            pa.table(batch_rows(writer, batch, BULK_ROWS), schema=table.arrow_schema)
            for writer in (member.number, member.number + SECOND)
        ]
        write = partial(table.upsert, pa.concat_tables(parts))
        told.wait_for(partial(_again, member, write, ConflictError))
        told.batches, told.rows = batch, told.rows + sum(part.num_rows for part in parts)


def scan(member: Member, table: Table, told: Told) -> None:
    """Read in one way after the other; what was read once is read again at its time."""
    chance = random.Random(member.number)
    for turn in _turns(member):
        once = partial(_scan_once, member, table, told, chance, turn)
        told.wait_for(partial(_again, member, once, StorageError))


def _again(member: Member, work: Callable[[], Any], error: type[KuduliteError]) -> None:
    """Do work; where files are removed without grace, again until `error` is not raised."""
    while True:
        try:
            work()
            return
        except error:
            if not member.stalls:
                raise


def _scan_once(member: Member, table: Table, told: Told, chance: random.Random, turn: int) -> None:
    names = ["writer", "number", "batch"]
    how = ("scan", "ordered", "tokens", "get")[turn % 4]
    tokens = table.scan_tokens(names, split_size_bytes=1 << 16) if how == "tokens" else []
    if tokens:  # none before the first row
        batches = [batch for token in tokens for batch in token.open()]
        rows = pa.Table.from_batches(batches, table.scan(names).schema)
        timestamp = tokens[0].timestamp
    else:
        planned = table.scan(names, ordered=how == "ordered")
        rows, timestamp = planned.to_arrow(), planned.timestamp
    is_victim = pc.field("writer").isin([*VICTIMS])  # whose past is purged meanwhile
    rows = rows.filter(~is_victim)
    if how == "get":
        _look_up(table, rows, timestamp, chance)
    problems = problems_of(rows, member.sessions)
    assert not problems, f"{how} at {timestamp}: {problems}"
    where = f"writer >= {RACE} or writer <= {max(LEVELS)}"
    again = table.scan(names, where=where, at=timestamp)
    assert again.count() == rows.num_rows, f"another count at {timestamp} than by {how}"
    _look_at_levels(table, rows, timestamp, chance)
    told.batches, told.rows = turn, told.rows + rows.num_rows


def _look_up(table: Table, rows: pa.Table, timestamp: int, chance: random.Random) -> None:
    """Find some rows of a snapshot by their keys, then and now."""
    if not rows.num_rows:
        return
    some = rows.take([chance.randrange(rows.num_rows) for _ in range(20)])
    keys = some.select(["writer", "number"])
    found = table.get_many(keys, timestamp).select(rows.column_names)
    assert found.to_pylist() == some.to_pylist(), f"get_many at {timestamp}"
    row = some.slice(0, 1).to_pylist()[0]
    now = table.get((row["writer"], row["number"]))
    assert now is not None and now["batch"] >= (row["batch"] if row["writer"] != RACE else 0)


def _look_at_levels(table: Table, rows: pa.Table, since: int, chance: random.Random) -> None:
    """Read the levels of one writer at the present in other ways; no read has two numbers."""
    seen = rows.filter(pc.field("writer") == LEVELS[0])
    if not seen.num_rows:
        return
    row = seen.slice(chance.randrange(seen.num_rows), 1).to_pylist()[0]
    writer, batch = row["number"], row["batch"]
    keys = [{"writer": level, "number": writer} for level in LEVELS]
    keys += [{"writer": writer, "number": number} for number in range(-RING, 0)]
    found = table.get_many(keys).column("batch").to_pylist()
    assert found == [found[0]] * len(keys), f"get_many at the present: {found}"
    assert found[0] >= batch, f"get_many at the present: {found}, {batch} before"
    levels = f"writer <= {max(LEVELS)} and number = {writer}"
    for number in range(batch, found[0] + 3):
        count = table.scan(where=f"{levels} and batch = {number}").count()
        assert count in (0, TABLETS), f"count at the present: {count} of batch {number}"
    changed = table.changes(since, where=levels).to_pylist()
    commits = {(row["batch"], row["_commit_version"]) for row in changed}
    assert len(changed) in (0, TABLETS) and len(commits) <= 1, f"changes since {since}: {changed}"


def maintain(member: Member, table: Table, told: Told) -> None:
    """Look after the table in one way after the other; files stay long enough for who reads."""
    for turn in _turns(member):
        told.wait_for(partial(table.maintain, GRACE_SECONDS) if turn % 3 else table.compact)
        told.batches = turn


def collect(member: Member, table: Table, told: Told) -> None:
    """Remove superseded versions and files without grace, again and again."""
    for turn in _turns(member):
        for _ in range(COLLECTIONS):
            # The part of it that waits for no tablet, and so meets publications that stand still.
            _collect_versions(table._store, 0.0)
            time.sleep(0.005)
        collect_garbage(table._store, 0.0)
        told.batches = turn


def purge(member: Member, table: Table, client: Client, told: Told) -> None:
    """Write a row of each victim, flush now and then, and purge them."""
    for turn in _turns(member):
        keys = [{"writer": writer, "number": member.number} for writer in VICTIMS]
        with client.new_session() as session:
            for key in keys:
                session.apply(table.new_upsert({**key, "batch": turn, "text": "to be purged"}))
        if turn % 2:
            table.flush()
        report = told.wait_for(partial(table.purge, keys))
        assert report.row_count >= len(keys), f"{report.row_count} of {len(keys)} rows were purged"
        told.batches, told.rows = turn, told.rows + report.row_count


def _turns(member: Member, turn: int = 1) -> Iterator[int]:
    """Number the turns of a member, from the first to its end."""
    end = time.monotonic() + member.seconds if member.seconds is not None else None
    while (member.turns is None or turn <= member.turns) and (
        end is None or time.monotonic() < end
    ):
        yield turn
        turn += 1
        if member.role != "session" and member.pause_seconds:
            time.sleep(member.pause_seconds)


def run_member(member: Member, shared: Client | None = None) -> Told:
    """Work until the end, with a client of its own or a shared one; what went wrong is told."""
    told = Told(member.role, member.number)
    begin = time.perf_counter()
    try:
        may_stall = member.stalls and member.role != "collector"
        storage = StallingStorage(member.number) if may_stall else None
        client = shared or Client(Path(member.folder), environment(storage))
        table = client.table("t")
        if member.role == "session":
            write_sessions(member, table, client, told)
        elif member.role == "bulk":
            write_bulk(member, table, told)
        elif member.role == "maintainer":
            maintain(member, table, told)
        elif member.role == "collector":
            collect(member, table, told)
        elif member.role == "purger":
            purge(member, table, client, told)
        else:
            scan(member, table, told)
        if shared is None:
            client.close()
    except BaseException:
        told.problem = traceback.format_exc()
    told.seconds = time.perf_counter() - begin
    return told


def _process(member: Member, pipe: Any) -> None:
    told = run_member(member)
    with contextlib.suppress(BrokenPipeError):
        pipe.send(told)


class Crowd:
    """The processes of a run; `start`, then `join` for what they tell."""

    def __init__(
        self,
        folder: Path,
        *,
        sessions: int,
        bulks: int,
        scanners: int,
        maintainers: int = 0,
        turns: int | None = None,
        seconds: float | None = None,
        pause_seconds: float = 0.0,
        collectors: int = 0,
        purgers: int = 0,
        mortals: int = 0,
        kills: int | None = None,
    ) -> None:
        """`mortals` of the session writers are killed again and again, `kills` times at most."""
        self.sessions = sessions
        self._mortals, self._kills_max, self.kills = mortals, kills, 0
        roles = ["session"] * sessions + ["bulk"] * bulks + ["scanner"] * scanners
        roles += ["maintainer"] * maintainers + ["collector"] * collectors
        roles += ["purger"] * purgers
        stalls = bool(collectors or purgers)
        self._members = [
            Member(role, number, str(folder), turns, seconds, sessions, pause_seconds, stalls)
            for number, role in enumerate(roles)
        ]
        self._folder = folder
        self._running: list[tuple[Any, Any]] = []
        self._context = multiprocessing.get_context("forkserver")
        self._begin = 0.0

    def run_in_threads(self) -> list[Told]:
        """Run all as threads of this process that share one client."""
        client = Client(self._folder, environment())
        with ThreadPoolExecutor(len(self._members)) as pool:
            results = list(pool.map(lambda member: run_member(member, client), self._members))
        client.close()
        return results

    def start(self) -> None:
        """Start all."""
        self._context.set_forkserver_preload(PRELOADED)
        self._begin = time.monotonic()
        for number in range(self._mortals):
            acknowledged = self._context.Value("q", 0, lock=False)
            self._members[number] = replace(self._members[number], acknowledged=acknowledged)
        self._running = [self._started(member) for member in self._members]

    def _started(self, member: Member) -> tuple[Any, Any]:
        reader, writer = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_process, args=(member, writer), daemon=True)
        process.start()
        writer.close()
        return process, reader

    def kill_mortals(self, seed: int = 0) -> None:
        """Kill a mortal now and then, and start it again, as often as it should be, or may be."""
        chance = random.Random(seed)
        while self._mortals and (self._kills_max is None or self.kills < self._kills_max):
            time.sleep(chance.uniform(0.3, 1.5))
            number = chance.randrange(self._mortals)
            process, reader = self._running[number]
            member, passed = self._members[number], time.monotonic() - self._begin
            is_over = member.seconds is not None and passed >= member.seconds
            if is_over or reader.poll() or not process.is_alive():
                return
            process.kill()
            process.join()
            if reader.poll():  # it ended right before
                reader.close()
            left = None if member.seconds is None else max(0.0, member.seconds - passed)
            self._running[number] = self._started(replace(member, seconds=left))
            self.kills += 1

    def join(self, timeout_seconds: float) -> list[Told]:
        """Wait for all; one that ends without a word, or not at all, is a problem, too.

        Meanwhile mortals are killed.
        """
        self.kill_mortals()
        deadline = time.monotonic() + timeout_seconds
        results = []
        for member, (process, reader) in zip(self._members, self._running, strict=True):
            told = Told(member.role, member.number, problem="it did not end")
            try:
                if reader.poll(max(0.0, deadline - time.monotonic())):
                    told = reader.recv()
            except EOFError:
                told.problem = "it died without a word"
            if told.problem == "it did not end":
                process.kill()
            process.join()
            results.append(told)
        return results


def problems_at_end(folder: Path, results: list[Told], sessions: int) -> list[str]:
    """The problems of the table when all are done, read by a client that has seen nothing."""
    problems = [f"{told.role} {told.number}: {told.problem}" for told in results if told.problem]
    table = Client(folder, environment()).table("t")
    rows = table.scan(["writer", "number", "batch"]).to_arrow()
    problems += problems_of(rows, sessions)
    found: dict[int, int] = {}
    owners: dict[int, int] = {}
    if victims := [writer for writer in rows.column("writer").to_pylist() if writer in VICTIMS]:
        problems.append(f"rows that were purged are there: {victims}")
    for row in rows.filter(pc.field("number") < 0).to_pylist():
        found[row["writer"]] = row["batch"]
    for row in rows.filter(pc.field("writer") == RACE).to_pylist():
        owners[row["number"]] = row["batch"]
    for told in results:
        writers = [told.number, told.number + SECOND] if told.role == "bulk" else [told.number]
        for writer in writers if told.role in ("session", "bulk") else []:
            if found.get(writer, 0) != told.batches:
                problems.append(
                    f"writer {writer}: {told.batches} batches acknowledged,"
                    f" {found.get(writer, 0)} in the table"
                )
    won = sorted((number, told.number) for told in results for number in told.won)
    if won != sorted(owners.items()):
        problems.append(f"rows raced for: told {won}, found {sorted(owners.items())}")
    problems += [str(problem) for problem in table.check().problems]
    return problems
