"""`merge`: random clauses against a dictionary and against the SQL statement, and each refusal."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import kudulite
import kudulite_spark
from kudulite.errors import SchemaError, TableNotFoundError, UsageError
from tests.spark.conftest import FRONT
from tests.support.spark.spark_tables import make_table, stored

NAMES = ("id", "host", "v", "w")
COLUMNS = "id BIGINT, host STRING, v INT, w DOUBLE"
Row = dict[str, Any]
# A value or condition as text, and as a function of the row of the table and that of the source.
Expression = tuple[str, Callable[[Row, Row], Any]]


@dataclass(frozen=True)
class Clause:
    """A clause in all three forms; `values` None is `*`."""

    match: str  # the words of SQL
    action: str
    condition: Expression | None
    values: dict[str, Expression] | None = None

    @property
    def sql(self) -> str:
        """The clause in SQL."""
        text = f"WHEN {self.match}" + (f" AND {self.condition[0]}" if self.condition else "")
        if self.action == "delete":
            return f"{text} THEN DELETE"
        if self.values is None:
            return f"{text} THEN {'UPDATE SET' if self.action == 'update' else 'INSERT'} *"
        if self.action == "update":
            named = ", ".join(f"{name} = {value[0]}" for name, value in self.values.items())
            return f"{text} THEN UPDATE SET {named}"
        values = ", ".join(value[0] for value in self.values.values())
        return f"{text} THEN INSERT ({', '.join(self.values)}) VALUES ({values})"

    def added(self, builder: kudulite_spark.MergeBuilder) -> kudulite_spark.MergeBuilder:
        """The builder with the clause."""
        star = "_all" if self.values is None and self.action != "delete" else ""
        name = f"when_{self.match.lower().replace(' ', '_')}_{self.action}{star}"
        condition = None if self.condition is None else self.condition[0]
        if self.values is None:
            return getattr(builder, name)(condition)
        texts = {name: value[0] for name, value in self.values.items()}
        return getattr(builder, name)(texts, condition)

    def applies(self, target: Row, source: Row) -> bool:
        """Whether the condition is true."""
        return self.condition is None or bool(self.condition[1](target, source))

    def new_row(self, target: Row, source: Row) -> Row:
        """The row that is written."""
        if self.values is None:
            return dict(source)
        before = target or dict.fromkeys(NAMES)
        return {**before, **{name: value[1](target, source) for name, value in self.values.items()}}


def greater(a: Any, b: Any) -> bool:
    """A comparison in SQL: with NULL it is not true."""
    return a is not None and b is not None and a > b


def plus(a: Any, b: Any) -> Any:
    """A sum in SQL."""
    return None if a is None or b is None else a + b


ON: list[tuple[Any, str, Callable[[Row, Row], bool]]] = [
    (None, "target.id = source.id", lambda t, s: t["id"] == s["id"]),
    (["host", "id"], "target.id = source.id AND target.host = source.host",
     lambda t, s: t["id"] == s["id"] and t["host"] is not None and t["host"] == s["host"]),
    ("target.v = source.v AND target.id < 8",) * 2
    + (lambda t, s: t["v"] is not None and t["v"] == s["v"] and t["id"] < 8,),
]  # fmt: skip
BOTH: list[Expression] = [
    ("source.v > target.v", lambda t, s: greater(s["v"], t["v"])),
    ("source.host IS NULL", lambda t, s: s["host"] is None),
    ("NOT (target.w > 3)", lambda t, s: greater(4, t["w"]) and not greater(t["w"], 3)),
]
OF_SOURCE: list[Expression] = [
    ("source.id > 8", lambda t, s: s["id"] > 8),
    ("source.v > 3", lambda t, s: greater(s["v"], 3)),
]
OF_TARGET: list[Expression] = [
    ("target.id % 2 = 0", lambda t, s: t["id"] % 2 == 0),
    ("target.v > 3", lambda t, s: greater(t["v"], 3)),
]
SET_BOTH: list[dict[str, Expression]] = [
    {"v": ("target.v + source.v", lambda t, s: plus(t["v"], s["v"]))},
    {"host": ("NULL", lambda t, s: None), "w": ("source.v", lambda t, s: s["v"])},
    {"w": ("0.5", lambda t, s: 0.5), "id": ("target.id", lambda t, s: t["id"])},
]
SET_TARGET: list[dict[str, Expression]] = [
    {"w": ("target.w + 1", lambda t, s: plus(t["w"], 1))},
    {"v": ("-1", lambda t, s: -1), "host": ("concat(target.host, 'x')",
     lambda t, s: plus(t["host"], "x"))},
]  # fmt: skip
INSERT: list[dict[str, Expression]] = [
    {"id": ("source.id", lambda t, s: s["id"]), "v": ("source.v", lambda t, s: s["v"])},
    {"host": ("'new'", lambda t, s: "new"), "id": ("source.id + 100", lambda t, s: s["id"] + 100)},
]


def random_clauses(rng: random.Random) -> list[Clause]:
    """One to five clauses; of each kind the last one may lack a condition."""
    found: list[Clause] = []
    for match, conditions, sets in (
        ("MATCHED", BOTH + OF_SOURCE + OF_TARGET, SET_BOTH + SET_TARGET),
        ("NOT MATCHED", OF_SOURCE, INSERT),
        ("NOT MATCHED BY SOURCE", OF_TARGET, SET_TARGET),
    ):
        for number in range(count := rng.choice((0, 1, 1, 2))):
            is_free = number == count - 1 and rng.random() < 0.5
            condition = None if is_free else rng.choice(conditions)
            action = "insert" if match == "NOT MATCHED" else rng.choice(("update", "delete"))
            values = None if action == "delete" else rng.choice(sets)
            if action != "delete" and match != "NOT MATCHED BY SOURCE" and rng.random() < 0.4:
                values = None
            found.append(Clause(match, action, condition, values))
    return found or random_clauses(rng)


def merged(
    model: dict[int, Row], source: list[Row], matches: Callable, clauses: list[Clause]
) -> dict[int, Row] | None:
    """The table afterwards; None if the statement has to fail.

    Raises LookupError if one key is deleted and inserted, which has no order."""
    kinds = [c for c in clauses if c.match == "MATCHED"]
    may_repeat = not kinds or [(c.action, c.condition) for c in kinds] == [("delete", None)]
    pairs = [(t, s) for t in model.values() for s in source if matches(t, s)]
    counts = Counter(t["id"] for t, _ in pairs)
    if not may_repeat and max(counts.values(), default=0) > 1:
        return None
    work = [("MATCHED", t, s) for t, s in pairs]
    work += [
        ("NOT MATCHED", {}, s) for s in source if not any(matches(t, s) for t in model.values())
    ]
    work += [("NOT MATCHED BY SOURCE", t, {}) for t in model.values() if t["id"] not in counts]
    after, inserted, deleted = dict(model), [], set()
    for match, target, row in work:
        clause = next((c for c in clauses if c.match == match and c.applies(target, row)), None)
        if clause is None:
            continue
        if clause.action == "delete":
            deleted.add(target["id"])
            continue
        new = clause.new_row(target, row)
        if clause.action == "insert":
            inserted.append(new)
        elif new["id"] != target["id"]:
            return None
        else:
            after[new["id"]] = new
    keys = [row["id"] for row in inserted]
    if deleted & {*keys}:
        raise LookupError
    if len({*keys}) < len(keys) or {*keys} & {*model}:
        return None
    return {k: row for k, row in after.items() if k not in deleted} | {r["id"]: r for r in inserted}


def random_rows(rng: random.Random, keys: list[int]) -> list[Row]:
    """Rows with NULLs and few values, so that columns match as well as keys."""
    return [
        {
            "id": key,
            "host": rng.choice((None, "a", "b")),
            "v": rng.choice((None, 1, 2, 3, 4, 5, 6)),
            "w": rng.choice((None, 2.5, 3.5)),
        }
        for key in keys
    ]


def fails(work: Callable[[], Any]) -> bool:
    """Whether Spark refuses it."""
    try:
        work()
    except PySparkException:
        return True
    return False


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """A catalog of the folder of the test; Spark keeps one for a name."""
    name = f"m{random.getrandbits(60):x}"
    kudulite_spark.register(spark, warehouse=tmp_path, catalog=name)
    yield name


@FRONT
@pytest.mark.parametrize("seed", range(2))
def test_random_clauses_equal_a_dictionary_and_the_statement(spark, catalog, tmp_path, seed):
    """All clauses, three ways to match, repeated source rows, and statements that have to fail."""
    rng = random.Random(seed)
    client = kudulite.connect(tmp_path)
    model = {row["id"]: row for row in random_rows(rng, list(range(12)))}
    tables = []
    for name in ("built", "said"):
        spark.sql(f"CREATE TABLE {catalog}.{name} ({COLUMNS}, PRIMARY KEY (id))")
        tables.append(client.table(name))
        tables[-1].insert([*model.values()])
    for _ in range(6):
        while True:
            keys = [rng.randrange(20) for _ in range(rng.choice((1, 4, 6)))]
            keys = keys if rng.random() < 0.2 else [*{*keys}]
            source, clauses, (on, text, matches) = (
                random_rows(rng, keys), random_clauses(rng), rng.choice(ON),
            )  # fmt: skip
            try:
                after = merged(model, source, matches, clauses)
                break
            except LookupError:
                continue
        frame = spark.createDataFrame([tuple(row.values()) for row in source], COLUMNS)
        builder = kudulite_spark.merge(frame, tables[0].path, on)
        for clause in clauses:
            builder = clause.added(builder)
        frame.createOrReplaceTempView("changes")
        said = f"MERGE INTO {catalog}.said AS target USING changes AS source ON {text} " + " ".join(
            clause.sql for clause in clauses
        )
        found = [fails(builder.execute), fails(lambda said=said: spark.sql(said))]
        assert found == [after is None] * 2, (builder, source, said)
        model = model if after is None else after
        for table in tables:
            assert {row["id"]: row for row in table.scan().to_pylist()} == model, (said, source)


@pytest.fixture
def path(tmp_path) -> str:
    """A table (k, s, x) of three rows."""
    types = {"k": pa.int32(), "s": pa.string(), "x": pa.float64()}
    rows = [(1, "a", 0.5), (2, "b", 1.5), (3, None, 2.5)]
    return make_table(tmp_path / "t", rows, types, primary_key=["k"])


def frame(spark: SparkSession, values: str, columns: str = "k, s, x") -> Any:
    """Rows of SQL's VALUES."""
    return spark.sql(f"SELECT * FROM VALUES {values} AS f({columns})")


@pytest.mark.quick
def test_clauses_with_columns_of_spark(spark, path):
    """In a condition and in values; names are found in any case; one commit is written."""
    source = frame(spark, "(1, 'A', 9D), (2, 'B', 0D), (4, 'D', 4D)").alias("mine")
    table = kudulite.open_table(path)
    table.flush()
    known = table.versions()
    builder = (
        kudulite_spark.merge(source, path, on=sf.col("target.k") == source["k"])
        .when_matched_update({"X": source["x"] + sf.col("target.x")}, source["x"] > 1)
        .when_matched_delete()
        .when_not_matched_insert_all("source.k < 10")
        .when_not_matched_by_source_update({"s": sf.lit("alone")})
    )
    builder.execute()
    assert stored(path) == [(1, "a", 9.5), (3, "alone", 2.5), (4, "D", 4.0)]
    assert table.versions()[1:] == known


def test_a_builder_prints_its_clauses(spark, path):
    """As SQL's clauses; a method returns a new builder."""
    empty = kudulite_spark.merge(spark.range(1), path)
    assert repr(empty) == f"<MergeBuilder into {path!r} on its primary key>"
    whole = empty.when_matched_update({"s": "'x'"}, "target.k > 1").when_matched_delete()
    assert repr(whole.when_not_matched_insert_all()).endswith(
        "on its primary key WHEN MATCHED AND target.k > 1 THEN UPDATE SET s WHEN MATCHED THEN"
        " DELETE WHEN NOT MATCHED THEN INSERT (*)>"
    )
    assert "WHEN" not in repr(empty)


def test_only_the_columns_that_are_set_are_written(spark, tmp_path):
    """An update of one column beside a wide one adds a fraction of its bytes."""
    types = {"k": pa.int32(), "s": pa.string(), "x": pa.float64()}
    rng = random.Random(1)
    rows = [(k, rng.randbytes(100).hex(), 0.5) for k in range(5000)]
    place = make_table(tmp_path / "t", rows, types, primary_key=["k"])
    table = kudulite.open_table(place)
    table.flush()
    changes = spark.range(5000).selectExpr("CAST(id AS INT) AS k", "rand(1) AS y")
    kudulite_spark.merge(changes, place).when_matched_update({"x": "source.y"}).execute()
    sizes = {
        kind: sum(file.stat().st_size for file in tmp_path.rglob(f"{kind}-*"))
        for kind in ("base", "redo")
    }
    assert 0 < sizes["redo"] < sizes["base"] / 5


def test_an_insert_gets_defaults_and_an_update_leaves_immutable_cells(spark, tmp_path):
    """Also where another clause sets these columns."""
    columns = [
        kudulite.column("k", kudulite.int32),
        kudulite.column("fixed", kudulite.string, default="f", mutable=False),
        kudulite.column("n", kudulite.int64, nullable=False, default=7),
    ]
    client = kudulite.connect(tmp_path)
    table = client.create_table("t", kudulite.schema(columns, "k"))
    table.insert([{"k": 1, "fixed": "one", "n": 1}])
    source = frame(spark, "(1, 'x', 5), (2, 'y', 6), (3, 'z', 8)", "k, fixed, n")
    begun = kudulite_spark.merge(source, table.path)
    with pytest.raises(SchemaError, match=r"sets column 'fixed', which is immutable: name the col"):
        begun.when_matched_update_all().execute()
    clauses = begun.when_matched_update({"n": "source.n"}).when_not_matched_insert(
        {"k": "source.k"}, "source.k = 2"
    )
    clauses.when_not_matched_insert({"k": "source.k", "fixed": "source.fixed"}).execute()
    assert stored(table.path) == [(1, "one", 5), (2, "f", 7), (3, "z", 7)]


def test_a_row_that_has_changed_meanwhile_is_a_conflict(spark, path):
    """The other writer's value stays."""

    def late(value: float) -> float:
        """Run in the task, after the snapshot is fixed and before the commit."""
        kudulite.open_table(path).upsert([{"k": 1, "x": 100.0}])
        return value + 1

    spark.udf.register("late_merge", late, "double")
    source = frame(spark, "(1), (2)", "k")
    builder = kudulite_spark.merge(source, path).when_matched_update({"x": "late_merge(target.x)"})
    with pytest.raises(PySparkException, match="ConflictError"):
        builder.execute()
    assert stored(path) == [(1, "a", 100.0), (2, "b", 1.5), (3, None, 2.5)]


# The source, a builder from one without clauses, and the message.
REFUSED: dict[str, tuple[str, Callable, str]] = {
    "two matches": ("(1, 'x', 1D), (1, 'y', 1D)", lambda m: m.when_matched_update_all(),
        "more than one source row matches the row with the key (1); nothing was written: make"),
    "a changed key": ("(1, 'x', 1D)",
        lambda m: m.when_matched_update({"k": "source.k + 1", "s": "'x'"}),
        "column 'k' is part of the primary key, which an update cannot change"),
    "one key of two rows": ("(9, 'x', 1D), (9, 'y', 1D)",
        lambda m: m.when_not_matched_insert_all(), "key already present"),
    "a number that is rounded": ("(9, 'x', 1.5D)",
        lambda m: m.when_not_matched_insert({"k": "source.x"}),
        "column 'k': 1.5 of double has no equal in int32; cast it"),
    "a wrong type": ("(1, 'x', 1D)", lambda m: m.when_matched_update({"x": "source.s"}),
        "WHEN MATCHED THEN UPDATE SET x has string, the column is double; cast it"),
    "no clause": ("(1, 'x', 1D)", lambda m: m, "the merge has no clause; add one, as in .when_"),
    "no such column": ("(1, 'x', 1D)", lambda m: m.when_matched_update({"y": "1"}),
        "no column 'y'; columns: k, s, x"),
    "no key": ("(9, 'x', 1D)", lambda m: m.when_not_matched_insert({"s": "'a'"}),
        "lacks key column k; the primary key is (k)"),
    "no column": ("(1, 'x', 1D)", lambda m: m.when_matched_update({}), "names no column; name at"),
    "an unreachable clause": ("(1, 'x', 1D)",
        lambda m: m.when_matched_delete().when_matched_update_all(),
        "can never apply, because WHEN MATCHED THEN DELETE has no condition and comes first"),
}  # fmt: skip


def test_what_cannot_be_done_is_refused_and_changes_nothing(spark, path):
    """With a message that says what to do."""
    before = stored(path)
    for case, (values, clauses, message) in REFUSED.items():
        with pytest.raises((PySparkException, UsageError)) as refused:
            clauses(kudulite_spark.merge(frame(spark, values), path)).execute()
        assert message in str(refused.value), case
        assert stored(path) == before, case
    with pytest.raises(SchemaError, match=r"'on': no column 'z'"):
        kudulite_spark.merge(spark.range(1), path, ["z"]).when_matched_delete().execute()
    with pytest.raises(SchemaError, match=r"the source: no column 'k'; columns: id"):
        kudulite_spark.merge(spark.range(1), path).when_matched_delete().execute()
    with pytest.raises(TableNotFoundError, match="nothing"):
        kudulite_spark.merge(spark.range(1), f"{path}-nothing")
