"""The first hour of a user: results and whole messages of calls are in golden/first_hour.txt.

Paths, moments and numbers of the run are replaced. After a message was changed, delete the file,
run the test, which writes it, and read the difference.
"""

from __future__ import annotations

import datetime
import inspect
import pickle
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import kudulite
from kudulite.client.write_plan import WRITE_OPTIONS
from kudulite.errors import KuduliteError
from kudulite_spark.session import _check_import
from tests.support.command_line import error, output
from tests.support.tables.core_tables import CoreTables

GOLDEN = Path(__file__).parent / "golden" / "first_hour.txt"
UTC = datetime.UTC
NAIVE = datetime.datetime(2026, 11, 21, 10)
OLD = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
SCHEMA = pa.schema({"id": pa.int64(), "city": pa.string(), "seen": pa.timestamp("us", "UTC")})
REPLACED = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \(HybridTime \d+\)", "<moment>"),
    (r"manifest/\d{20}", "manifest/<version>"),
    (r"'\d{10}'|\b\d{10}\b", "<seconds>"),
)


class User:
    """A directory with the table `people`, which has one row and the tag `v1`."""

    def __init__(self, core: CoreTables) -> None:
        self.client = core.client("wh")
        self.root = self.client.root
        self.people = self.client.create_table("people", SCHEMA, primary_key="id")
        self.people.insert([{"id": 1, "city": "Rome"}])
        self.people.tag("v1")

    def create(self, schema: object, primary_key: object = "id", **options: object) -> None:
        """Create a table; the types are wrong on purpose."""
        create: Callable[..., object] = self.client.create_table
        create("new", schema, primary_key=primary_key, **options)

    def create_of_a_frame(self) -> str:
        """With pandas' default of nanoseconds; the rows are written by a call of their own."""
        frame = pd.DataFrame({"city": ["Bari"], "id": [7], "day": pd.to_datetime(["2026-11-21"])})
        table = self.client.create_table("frame", frame, primary_key="id")
        table.insert(frame)
        return f"{table.schema}\n{table.get(7)}"

    def write_an_empty_column(self) -> str:
        """Pandas makes doubles of it."""
        self.people.upsert(pd.DataFrame({"id": [9], "city": [float("nan")]}))
        return str(self.people.get(9))

    def read_now(self) -> str:
        """Both ways that the message for a naive datetime gives."""
        now = datetime.datetime.now()
        found = [self.people.scan(at=at) for at in (now.astimezone(), datetime.datetime.now(UTC))]
        return f"{[scan.count() for scan in found]} rows, {self.people.changes(0).count()} changes"

    def use_after_a_new_creation(self) -> None:
        """Hold a table while another one takes its name."""
        self.client.delete_table("people")
        self.client.create_table("people", SCHEMA, primary_key="id")
        self.people.upsert([{"id": 2}])

    def lose_the_manifest(self) -> None:
        """Leave nothing but the tablets."""
        if (self.root / "lost").exists():
            return
        self.client.create_table("lost", SCHEMA, primary_key="id")
        for path in (self.root / "lost" / "manifest").iterdir():
            path.unlink()
        (self.root / "lost" / "manifest").rmdir()

    def list_a_lost_table(self) -> None:
        """The others are listed."""
        self.lose_the_manifest()
        assert self.client.list_tables() == ["people"]

    def open_a_lost_table(self) -> None:
        """It is not absent."""
        self.lose_the_manifest()
        self.client.table("lost")

    def create_over_a_lost_table(self) -> None:
        """Its files stay as they are."""
        self.lose_the_manifest()
        self.client.create_table("lost", SCHEMA, primary_key="id")

    def close_with_unflushed_rows(self) -> None:
        """The client stays usable, and so does the session."""
        session = self.client.new_session()
        session.apply(self.people.new_insert({"id": 2}))
        session.apply(self.people.new_insert({"id": 3}))
        try:
            self.client.close()
        finally:
            session.flush()
            self.client.close()

    def use_the_words(self) -> str:
        """The words that people try on the first day, which were errors once."""
        people = self.people
        counts = [people.update(where="id = 1", set={"city": "Roma"}).updated]
        counts += [people.delete(where="id = 7").deleted, len(people), people.head(5).num_rows]
        condition = (people["id"] > 0) & (people["city"] == "Roma") | ~(people["id"] != 9)
        counts += [people.scan(where=condition).count(), sum(1 for _ in people.scan())]
        counts += [people.scan(where="city = 'Roma' OR id != 1").count()]
        counts += [people.scan().to_parquet(self.root / "people.parquet")]
        counts += [len(pickle.loads(pickle.dumps(people)).schema), len(pickle.dumps(SCHEMA)) > 0]
        moment = people.tags["v1"]
        people.restore(moment)
        return f"{counts}, {[version.operation for version in people.versions()][:3]}"

    def print_a_moment(self) -> str:
        """A HybridTime prints as a time, and converts both ways."""
        moment = self.people.insert([{"id": 2}]).timestamp
        again = kudulite.Timestamp.from_datetime(moment.to_datetime())
        assert moment.to_datetime() == again.to_datetime() and moment <= again
        return re.sub(r"\d", "0", str(moment)[:19])

    def expand_the_home(self) -> str:
        """`~` is the home directory, not a folder of that name."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(self.root))
            return f"{kudulite.connect('~/wh2').root}, {Path('~').exists()}"

    def read_the_help(self) -> str:
        """The help of a write names its options, and checkers know the package's types."""
        names = [
            name for name in WRITE_OPTIONS if name in (inspect.getdoc(kudulite.Table.upsert) or "")
        ]
        return f"{', '.join(names)}; {(Path(kudulite.__file__).parent / 'py.typed').exists()}"

    def use_the_command_line(self) -> str:
        """Wrong paths of commands, and words that operators look for."""
        path = self.people.path
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "400")  # so that no line is broken
            said = [error("list", path), error("list", self.root / "typo")]
        said = [re.sub(r"[│╭╮╰╯─]", "", text).partition("Error")[2][:-2] for text in said]
        said += [error("backups", self.root / "typo", "--verify"), output("--version").split()[0]]
        said += [output("get", path, 1, "--json"), output("scan", path, "--where", "id = 9")]
        return "\n".join(" ".join(text.split()) for text in said)

    def miss_the_extra(self) -> None:
        """The command line without its packages."""
        script = "import sys; sys.modules['typer'] = None; import kudulite.tools.entry"
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert found.returncode == 1
        raise KuduliteError(found.stderr.strip())

    def run_spark_with_another_python(self) -> None:
        """The workers of a session whose Python cannot import the package."""
        _check_import("/nowhere/python3", "")

    def write_numpy(self) -> None:
        """A column of pandas without a time zone."""
        seen = pd.to_datetime(["2026-11-21"])
        self.people.upsert(pd.DataFrame({"id": [5], "seen": seen}))

    def write_digits(self) -> None:
        """Nanoseconds in the second row."""
        seen = pa.array([0, 1], pa.timestamp("ns", "UTC"))
        self.people.upsert(pa.table({"id": [5, 6], "seen": seen}))


# Of types that checkers refuse.
WRONG: Any = {"city": "Rome"}
ONE: Any = 1
MIXED = pd.DataFrame({"id": [1, 2], "name": ["a", 7]})
CASES: dict[str, Callable[[User], object]] = {
    "at=now.astimezone(), at=datetime.now(timezone.utc), changes(0)": User.read_now,
    "at=datetime.now()": lambda u: u.people.scan(at=NAIVE),
    "at=date.today()": lambda u: u.people.scan(at=NAIVE.date()),
    "changes(datetime.now())": lambda u: u.people.changes(NAIVE),
    "tag('x', at=datetime.now())": lambda u: u.people.tag("x", at=NAIVE),
    "a naive datetime in a dict": lambda u: u.people.upsert([{"id": 2, "seen": NAIVE}]),
    "a naive datetime in a session": lambda u: u.people.new_upsert({"id": 2, "seen": NAIVE}),
    "a naive datetime in a predicate": lambda u: u.people.scan(where=[u.people["seen"] > NAIVE]),
    "naive datetimes in pandas": User.write_numpy,
    "nanoseconds that are not exact": User.write_digits,
    "before the table was created": lambda u: u.people.scan(at=OLD),
    "changes up to before the creation": lambda u: u.people.changes(0, OLD),
    "at=3, a version": lambda u: u.people.scan(at=3),
    "at=int(time.time())": lambda u: u.people.scan(at=int(time.time())),
    "changes(3)": lambda u: u.people.changes(3),
    "at='v1', a tag": lambda u: u.people.scan(at="v1"),
    "at='v2', no tag": lambda u: u.people.scan(at="v2"),
    "connect('hdfs://cluster/wh')": lambda u: kudulite.connect("hdfs://cluster/wh"),
    "open_table('hdfs://node/wh/t')": lambda u: kudulite.open_table("hdfs://node/wh/t"),
    "connect(a table)": lambda u: kudulite.connect(u.people.path),
    "connect(None)": lambda u: kudulite.connect(None),  # type: ignore[arg-type]
    "list_tables with a lost manifest": User.list_a_lost_table,
    "table(…) with a lost manifest": User.open_a_lost_table,
    "create_table(…) over a lost manifest": User.create_over_a_lost_table,
    "close() with rows in a session": User.close_with_unflushed_rows,
    "create_table(name, df, primary_key='id')": User.create_of_a_frame,
    "a column of pandas without values": User.write_an_empty_column,
    "create_table(name, 5)": lambda u: u.create(5),
    "create_table(name, df) without a key": lambda u: u.create(pd.DataFrame({"id": [1]}), None),
    "create_table(name, a dict of types)": lambda u: u.create({"id": "int64"}),
    "create_table(name, a frame with several types)": lambda u: u.create(MIXED),
    "create_table(name, a frame without values)": lambda u: u.create({"id": [1], "x": [None]}),
    "hash_partitions={'id': 4}": lambda u: u.create(SCHEMA, hash_partitions={"id": 4}),
    "hash_partitions=4": lambda u: u.create(SCHEMA, hash_partitions=4),
    "hash_partitions=('id', 4)": lambda u: u.create(SCHEMA, hash_partitions=("id", 4)),
    "range_partitions=['id']": lambda u: u.create(SCHEMA, range_partitions=["id"]),
    "a column of pandas with several types": lambda u: u.people.upsert(
        pd.DataFrame({"id": [3, 4], "city": ["a", 7]})
    ),
    "bytes in a text column": lambda u: u.people.upsert(pa.table({"id": [3], "city": [b"Bari"]})),
    "where='upper(city) = …'": lambda u: u.people.scan(where="upper(city) = 'ROME'"),
    "where='town = …'": lambda u: u.people.scan(where="town = 'Rome'"),
    "where='city = '": lambda u: u.people.scan(where="city = "),
    "where={'city': 'Rome'}": lambda u: u.people.scan(where=WRONG),
    "where=('city', 'like', 'R%')": lambda u: u.people.scan(where=("city", "like", "R%")),
    "& without parentheses": lambda u: u.people["id"] == ONE & u.people["city"] == "Rome",
    "and between conditions": lambda u: (u.people["id"] == 1) and (u.people["city"] == "Rome"),
    "the words of the first day": User.use_the_words,
    "str(result.timestamp)": User.print_a_moment,
    "connect('~/wh2')": User.expand_the_home,
    "upsert(rows, schema_mode='merge')": lambda u: u.people.upsert(
        [{"id": 3}],
        schema_mode="merge",  # type: ignore[call-arg]
    ),
    "create_table(…, n_replicas=1)": lambda u: u.create(SCHEMA, n_replicas=1),
    "create_table(…, owner='')": lambda u: u.create(SCHEMA, owner=""),
    "create_table(…, partitioning=4)": lambda u: u.create(SCHEMA, partitioning=4),
    "update(rows, where=…)": lambda u: u.people.update([{"id": 1}], where="id = 1"),
    "help(table.upsert); py.typed": User.read_the_help,
    "kudulite list TABLE; list TYPO; backups TYPO --verify; …": User.use_the_command_line,
    "kudulite without its extra": User.miss_the_extra,
    "Spark with another Python": User.run_spark_with_another_python,
    "an object of a deleted table": User.use_after_a_new_creation,
}


def said(case: Callable[[User], object], user: User) -> str:
    """Return the warnings and the error that the user reads, without paths, times and numbers."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            result = case(user)
            lines = [result] if isinstance(result, str) else []
        except KuduliteError as error:
            lines = [f"{type(error).__name__}: {error}"]
    lines = [f"{each.category.__name__}: {each.message}" for each in found] + lines
    text = "\n".join(lines).replace(str(user.root), "/wh").replace(sys.executable, "<python>")
    for pattern, name in REPLACED:
        text = re.sub(pattern, name, text)
    return text


def test_every_mistake_has_a_message_that_says_what_to_do(core: CoreTables):
    """None is accepted in silence, and none ends in an error of another library."""
    user = User(core)
    text = "\n".join(f"{name}\n{said(case, user)}\n" for name, case in CASES.items())
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was written; read it")
    assert text == GOLDEN.read_text()
