"""All ways of reading a table, compared with its dictionary under many random filters.

    source          format("kudulite") without the front, the filter in Spark
    front           the same with it: Spark pushes and prunes
    option          the options filter and columns
    read_table      filtered by Spark
    where           read_table with `where`
    scan, tokens    without Spark; what is no conjunction of predicates is filtered here

Spark takes long for each query, so that many are one: a union of branches, each with its number.
A branch gives all columns, NULL in place of those that it does not ask for.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import kudulite_spark
from kudulite import NativeLimits
from kudulite_spark import native_read
from kudulite_spark.session import has_front
from tests.support.spark.spark_tables import configured, load
from tests.support.spark.sql_filters import Filter, FilterMaker
from tests.support.tables.typed_tables import KEY_NAMES, TypedTable, random_table

BRANCHES_MAX = 20  # of one query
FRONT = "spark.kudulite.front"
# Nearly all rows from Parquet; as users have it; rest from tokens; everything from tokens.
LIMITS = (
    NativeLimits(excluded_fraction_max=1, bounded_rows_max=8),
    NativeLimits(),
    NativeLimits(excluded_fraction_max=1, handed_bytes_max=0),
    NativeLimits(excluded_rows_max=0, handed_bytes_max=0),
)
Rows = list[str]
Make = Callable[["Case"], DataFrame]


@dataclass(frozen=True)
class Case:
    """One read: a filter, the columns wanted, and perhaps a limit."""

    filter: Filter
    names: tuple[str, ...]
    limit: int | None

    def expected(self, rows: Sequence[dict[str, Any]]) -> Rows:
        """The expected rows out of the dictionary's, without the limit."""
        return as_text([row for row in rows if self.filter.holds(row)], self.names)


def as_text(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> Rows:
    """Return rows bit by bit, in an order."""
    return sorted(repr([row[name] for name in names]) for row in rows)


class Matrix:
    """The ways of reading one table."""

    def __init__(self, spark: SparkSession, made: TypedTable) -> None:
        self._spark = spark
        self._made = made
        self._schema = made.table.arrow_schema
        self._types = {f.name: f.dataType.simpleString() for f in load(spark, made.path).schema}
        self.counts: dict[str, int] = {}

    def compare(self, moment: int, cases: Sequence[Case]) -> None:
        """Read all cases in all ways as of the moment; AssertionError where one differs."""
        spark, path, at = self._spark, self._made.path, str(moment)
        self._all = self._made.expected(moment).to_pylist()
        with configured(spark, {FRONT: "false"}):
            self._filtered_in_spark(load(spark, path, snapshotTimestamp=at), cases)

            def by_option(case: Case) -> DataFrame:
                names = ",".join(case.names)
                options = {"filter": case.filter.option, "columns": names}
                return load(spark, path, snapshotTimestamp=at, **options)

            with_option = [case for case in cases if case.filter.option is not None]
            self._union("option", with_option, by_option)
        with configured(spark, {FRONT: "true"}):
            assert has_front(spark)
            frame = load(spark, path, snapshotTimestamp=at)
            self._union("front", cases, frame)
        native = kudulite_spark.read_table(spark, path, snapshot=moment)
        self._union("read_table", cases, native)

        def by_where(case: Case) -> DataFrame:
            where = case.filter.option or list(case.filter.predicates or ())
            return kudulite_spark.read_table(
                spark, path, snapshot=moment, columns=case.names, where=where
            )

        with_where = [case for case in cases if case.filter.predicates is not None]
        self._union("where", with_where, by_where)
        for case in cases:
            self._without_spark(moment, case)

    def _filtered_in_spark(self, frame: DataFrame, cases: Sequence[Case]) -> None:
        """One scan, and a column for each filter."""
        tests = [
            sf.expr(case.filter.sql).cast("boolean").alias(f"test {number}")
            for number, case in enumerate(cases)
        ]
        found = frame.select("*", *tests).toArrow()
        for number, case in enumerate(cases):
            rows = found.filter(found[f"test {number}"].fill_null(False)).select(self._schema.names)
            text = as_text(rows.cast(self._schema).to_pylist(), case.names)
            self._check("source", case, text)

    def _union(self, way: str, cases: Sequence[Case], source: DataFrame | Make) -> None:
        """Read one frame under all filters, or for each case one that is filtered already."""
        for start in range(0, len(cases), BRANCHES_MAX):
            some = cases[start : start + BRANCHES_MAX]
            branches = [self._branch(f"{way} {n}", n, c, source) for n, c in enumerate(some)]
            # As one text: a union of DataFrames is analysed anew for each of them.
            found = self._spark.sql(" UNION ALL ".join(branches)).toArrow()
            for number, case in enumerate(some):
                rows = found.filter(pa.compute.equal(found["branch"], number))
                rows = rows.select(self._schema.names).cast(self._nullable)
                self._check(way, case, as_text(rows.to_pylist(), case.names))

    @property
    def _nullable(self) -> pa.Schema:
        return pa.schema([pa.field(field.name, field.type) for field in self._schema])

    def _branch(self, view: str, number: int, case: Case, source: DataFrame | Make) -> str:
        is_whole = isinstance(source, DataFrame)
        frame = source if is_whole else source(case)
        frame.createOrReplaceTempView(f"`{view}`")
        columns = [
            f"`{name}`" if name in case.names else f"CAST(NULL AS {self._types[name]}) AS `{name}`"
            for name in self._schema.names
        ]
        where = f"WHERE {case.filter.sql}" if is_whole else ""
        limit = "" if case.limit is None else f"LIMIT {case.limit}"
        return f"(SELECT {number} AS branch, {', '.join(columns)} FROM `{view}` {where} {limit})"

    def _without_spark(self, moment: int, case: Case) -> None:
        table, where = self._made.table, case.filter.pushable
        names = list(self._schema.names)
        whole = case.filter.predicates is not None
        expected = case.expected(self._all)

        def rest(batches: Iterable[pa.RecordBatch]) -> Rows:
            rows = [row for batch in batches for row in batch.to_pylist()]
            if not whole:
                rows = [row for row in rows if case.filter.holds(row)]
            return as_text(rows, case.names)

        asked = list(case.names) if whole else names
        scan = table.scan(columns=asked, where=where, at=moment)
        self._check("scan", case, rest(scan.to_batches()), is_limited=False)
        if whole:
            assert scan.count() == len(expected), case
            limited = table.scan(
                columns=asked, where=where, at=moment, limit=case.limit, ordered=True
            ).to_arrow()
            in_order = [row for row in self._all if case.filter.holds(row)][: case.limit]
            ordered = [repr([row[name] for name in case.names]) for row in in_order]
            read = [repr([row[name] for name in case.names]) for row in limited.to_pylist()]
            assert read == ordered, ("ordered scan", case, read, ordered)
        tokens = table.scan_tokens(columns=asked, where=where, at=moment, split_size_bytes=1)
        found = rest(b for token in pickle.loads(pickle.dumps(tokens)) for b in token.open())
        self._check("tokens", case, found, is_limited=False)

    def _check(self, way: str, case: Case, found: Rows, *, is_limited: bool = True) -> None:
        expected = case.expected(self._all)
        self.counts[way] = self.counts.get(way, 0) + 1
        told = f"{way}: {case.filter.sql}\n{case}\nfound    {found}\nexpected {expected}"
        if is_limited and case.limit is not None and way != "source":
            assert len(found) == min(case.limit, len(expected)), told
            left = list(expected)
            for row in found:
                assert row in left, told
                left.remove(row)
            return
        assert found == expected, told


def made_table(path: Any, seed: int) -> TypedTable:
    """A random table whose newest moment has all that makes a read difficult, by its seed."""
    made = random_table(path, seed, step_count=4)
    last = ["clean", "dirty", "dirty", "altered", "overwritten", "parts"][seed % 6]
    if last == "clean":
        made.reinsert()
        made.compact()
    elif last == "altered":
        made.alter()
        made.part()
    elif last == "overwritten":
        made.overwrite()
    elif last == "parts":
        for _ in range(5):
            made.part()
    made.stand_still()
    if last != "clean":
        for change in (made.reinsert, made.update, made.delete, made.rows):
            change()
            made.stand_still()
    return made


def cases(made: TypedTable, count: int, seed: int) -> Iterator[Case]:
    """Yield so many random cases for a table."""
    chance = random.Random(seed)
    keys = {"group": ["g0", "g1", "g2"], "id": [0, 7, 30, 59]}
    maker = FilterMaker(made.table.schema, keys | made.values, seed)
    columns = [*KEY_NAMES, *made.values]
    for _ in range(count):
        names = chance.sample(columns, chance.randint(1, len(columns)))
        limit = chance.randint(0, 20) if chance.random() < 0.1 else None
        yield Case(maker.filter(), tuple(names), limit)


def run(spark: SparkSession, path: Any, seed: int, filter_count: int) -> dict[str, int]:
    """Make the table of a seed and read it under so many filters, half now and half in the past.

    Returns the number of reads by each way."""
    made = made_table(path, seed)
    matrix = Matrix(spark, made)
    chance = random.Random(seed)
    all_cases = list(cases(made, filter_count, seed))
    half = filter_count // 2
    default, native_read.LIMITS = native_read.LIMITS, LIMITS[seed % len(LIMITS)]
    try:
        matrix.compare(made.moments[-1], all_cases[:half])
        matrix.compare(chance.choice(made.moments[1:-1]), all_cases[half:])
    finally:
        native_read.LIMITS = default
    return matrix.counts
