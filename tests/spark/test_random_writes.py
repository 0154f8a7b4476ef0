"""Random sequences of Spark writes against a dictionary, now and at every earlier commit.

A sequence makes a table of 1 to 16 tablets and writes to it two or three times: each of the eight
operations in each layout, all or some columns, with nulls, from 1 to 8 tasks, keys repeated in and
across tasks.
The model applies the rows one after the other, in task order; a row error refuses the whole write.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import kudulite
from tests.support.spark.spark_tables import in_order, load, rows, save, staged_files, stored

FIRST = ("insert", "insert_ignore", "upsert", "upsert_ignore")  # of an empty table
THEN = ("update", "update_ignore", "delete", "delete_ignore")
VALUES = ("s", "n")
ARROW = {"a": pa.int64(), "b": pa.string(), "s": pa.string(), "n": pa.int64()}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"hash_partitions": [(["a"], 2)]},
    {"hash_partitions": [(["a", "b"], 5)]},
    {"hash_partitions": [(["b"], 4), (["a"], 4)]},
    {"range_partitions": {"columns": ["a"], "bounds": [[None, 0], [0, 10], [10, None]]}},
    {
        "hash_partitions": [(["b"], 3)],
        "range_partitions": {"columns": ["a"], "bounds": [[None, 3], [3, None]]},
    },
    {
        "hash_partitions": [(["b"], 3)],
        "range_partitions": {"columns": ["a"], "bounds": [[None, 3], [3, None, [(["a", "b"], 2)]]]},
    },
    {"hash_partitions": [(["a"], 16)]},
]
SEQUENCE_COUNT, PART_COUNT = len(LAYOUTS) * len(FIRST), len(LAYOUTS)  # parts share the processes

Row = dict[str, Any]


class RefusedError(Exception):
    """The model's row error."""


@dataclass
class Model:
    """The table as a dictionary, and as it was after each commit."""

    rows: dict[tuple, Row] = field(default_factory=dict)
    history: list[tuple[int, list[tuple]]] = field(default_factory=list)

    def apply(self, operation: str, written: list[Row], ignore_null: bool) -> None:
        """Apply all rows in order, or raise RefusedError and change nothing."""
        rows = dict(self.rows)
        for row in written:
            _APPLY[operation](rows, row, ignore_null)
        self.rows = rows

    def content(self) -> list[tuple]:
        """All rows in order."""
        return in_order((*key, row["s"], row["n"]) for key, row in self.rows.items())


def _insert(rows: dict[tuple, Row], row: Row, ignore_null: bool) -> None:
    rows[row["a"], row["b"]] = {name: row.get(name) for name in VALUES}


def _update(rows: dict[tuple, Row], row: Row, ignore_null: bool) -> None:
    key = row["a"], row["b"]
    changed = {n: row[n] for n in VALUES if n in row and not (ignore_null and row[n] is None)}
    rows[key] = {**rows[key], **changed}


def _delete(rows: dict[tuple, Row], row: Row, ignore_null: bool) -> None:
    del rows[row["a"], row["b"]]


def _when(present: Callable | None, absent: Callable | None) -> Callable:
    """An operation by what it does with a key that is there and one that is not; None refuses."""

    def apply(rows: dict[tuple, Row], row: Row, ignore_null: bool) -> None:
        action = present if (row["a"], row["b"]) in rows else absent
        if action is None:
            raise RefusedError
        action(rows, row, ignore_null)

    return apply


def _nothing(rows: dict[tuple, Row], row: Row, ignore_null: bool) -> None:
    pass


_APPLY = {
    "insert": _when(None, _insert),
    "insert_ignore": _when(_nothing, _insert),
    "upsert": _when(_update, _insert),
    "upsert_ignore": _when(_update, _insert),
    "update": _when(_update, None),
    "update_ignore": _when(_update, _nothing),
    "delete": _when(_delete, None),
    "delete_ignore": _when(_delete, _nothing),
}


def random_rows(choose: random.Random, operation: str, model: Model) -> list[Row]:
    """Rows for one write; mostly such that a strict operation is not refused."""
    known = sorted(model.rows)
    columns = choose.choice([VALUES, VALUES, ("s",), ("n",)])
    strict = operation in ("insert", "update", "delete") and choose.random() < 0.8
    keys: list[tuple] = []
    for _ in range(choose.randint(0 if choose.random() < 0.1 else 1, 40)):
        if operation == "insert" and strict:
            key = (choose.randrange(1000, 2000), choose.choice("pqr"))
        elif known and (strict or choose.random() < 0.6):
            key = choose.choice(known)
        else:
            key = (choose.randrange(-5, 15), choose.choice("pqr"))
        keys.append(key)
    if strict:
        keys = list(dict.fromkeys(keys))  # a key twice is refused by insert and delete
        if operation != "insert":
            keys = [key for key in keys if key in model.rows]
    return [
        {
            "a": a,
            "b": b,
            **{n: None if choose.random() < 0.2 else _value(choose, n) for n in columns},
        }
        for a, b in keys
    ]


def _value(choose: random.Random, name: str) -> Any:
    number = choose.randrange(100)
    return f"v{number}" if name == "s" else number


def run_sequence(spark, folder, seed: int) -> None:
    """One table, some writes, and the comparison after each and at the end for every moment."""
    choose = random.Random(seed)
    client = kudulite.connect(str(folder), background_maintenance=False)
    arrow = pa.schema(
        [("a", pa.int64()), ("b", pa.string()), ("s", pa.string()), ("n", pa.int64())]
    )
    number, place = divmod(seed, len(LAYOUTS))
    layout = LAYOUTS[place]
    table = client.create_table(f"t{seed}", arrow, primary_key=["a", "b"], **layout)
    path = str(table.path)
    model = Model()
    operations = [FIRST[number], THEN[(number + place) % len(THEN)]]
    for operation in operations + choose.choice([[], [choose.choice(FIRST + THEN)]]):
        written = random_rows(choose, operation, model)
        ignore_null = choose.random() < 0.3
        options = {"operation": operation, "ignoreNull": str(ignore_null).lower()}
        frame = frame_of(spark, written, choose)
        expected = None
        try:
            model.apply(operation, written, ignore_null)
        except RefusedError:
            expected = "key already present" if operation == "insert" else "key not found"
        if expected is None:
            save_again_if_killed(frame, path, options)
        else:
            with pytest.raises(Exception, match=expected):
                save_again_if_killed(frame, path, options)
        assert staged_files(path) == []
        assert stored(path) == model.content(), operation
        moment = kudulite.open_table(path).current_timestamp()
        model.history.append((moment, model.content()))
    for moment, content in model.history:
        assert stored(path, at=moment) == content, f"at {moment}"
    moment, content = choose.choice(model.history)
    if choose.random() < 0.3:
        assert rows(load(spark, path, snapshotTimestamp=moment)) == content


def save_again_if_killed(frame, path: str, options: dict[str, str]) -> None:
    """Write; once more if Spark killed a worker, which left the table as it was.

    Two seconds after a job failed, Spark kills the worker of each task that it interrupted. Such a
    worker may have begun another task meanwhile. A worker that crashed by itself leaves a trace.
    """
    before = stored(path)
    try:
        save(frame, path, **options)
    except Exception as error:
        text = str(error)
        if "Python worker exited unexpectedly" not in text or "Fatal Python error" in text:
            raise
        assert stored(path) == before
        save(frame, path, **options)


def frame_of(spark, written: list[Row], choose: random.Random):
    """The rows as a DataFrame of 1 to 8 tasks, in their order, with columns in any order."""
    names = list(written[0]) if written else ["a", "b", "s"]
    choose.shuffle(names)
    task_count = choose.choice((1, 1, 2, 2, 3, 4, 6, 8))
    data = {name: pa.array([row[name] for row in written], ARROW[name]) for name in names}
    data["task"] = pa.array(
        [i * task_count // len(written) for i in range(len(written))], pa.int32()
    )
    frame = spark.createDataFrame(pa.table(data)).coalesce(1)
    if task_count > 1:
        frame = frame.repartitionById(task_count, "task")
    return frame.drop("task")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, SEQUENCE_COUNT, PART_COUNT))
def test_random_writes_equal_a_dictionary_now_and_at_every_commit(spark, tmp_path, first):
    """32 sequences in parts, two at a time: much of a Spark write is waiting."""

    def failure(seed: int) -> str | None:
        try:
            run_sequence(spark, tmp_path, seed)
        except BaseException as error:  # reported with its seed, below
            return f"seed {seed}: {type(error).__name__}: {str(error)[:1500]}"
        return None

    with ThreadPoolExecutor(2) as pool:
        failures = [text for text in pool.map(failure, range(first, first + PART_COUNT)) if text]
    assert not failures, "\n".join(failures[:5])
