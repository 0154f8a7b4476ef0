"""Conditions against an oracle of three-valued logic, and how they are made."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kudulite import Column, Schema, float_, int32, int64, parse_type, parse_where
from kudulite.errors import OptionError, UsageError
from kudulite.model.condition import And, ColumnExpression, Or, Predicate
from kudulite.model.encoded_key import encode_key
from kudulite.model.predicate import bind_predicates
from tests.support.oracle.condition_model import (
    KEY,
    TYPES,
    VALUES,
    condition_of,
    lists_of,
    text_of,
    trees,
    truth,
)
from tests.support.tiers import examples

SCHEMA = Schema.build(
    [Column(-1, name, TYPES[name], nullable=name not in KEY) for name in VALUES], KEY
)
ROWS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
A, B = ColumnExpression("a"), ColumnExpression("b")


def batch_of(rows):
    """The rows as Arrow."""
    fields = [(name, TYPES[name].arrow) for name in VALUES]
    return pa.RecordBatch.from_pylist(rows, pa.schema(fields))


@settings(max_examples=examples(300))
@given(trees(), st.lists(ROWS, max_size=12))
def test_every_form_means_what_sql_means(tree, rows):
    """As operators, as text, as lists of tuples; negated; after pickling; in its two parts."""
    batch, expected = batch_of(rows), [truth(tree, row) for row in rows]
    condition = condition_of(tree)
    forms = [condition, [condition], text_of(tree), lists_of(tree)]
    for form in forms:
        if form is None:
            continue
        bound = bind_predicates(parse_where(form, SCHEMA), SCHEMA)
        found = pickle.loads(pickle.dumps(bound)).evaluate(batch)
        assert found.tolist() == [found is True for found in expected], form
    negated = bind_predicates([~condition], SCHEMA)
    assert negated.evaluate(batch).tolist() == [found is False for found in expected]
    bound = bind_predicates([condition], SCHEMA)
    of_key, rest = bound.split(KEY)
    assert set(of_key.columns) <= set(KEY)
    assert (of_key.evaluate(batch) & rest.evaluate(batch)).tolist() == bound.evaluate(
        batch
    ).tolist()


def statistics_of(rows, name):
    """As Parquet has them: without NaN."""
    values = [row[name] for row in rows if row[name] is not None and row[name] == row[name]]
    nulls = sum(row[name] is None for row in rows)
    return (
        (min(values), max(values), nulls, len(rows)) if values else (None, None, nulls, len(rows))
    )


@settings(max_examples=examples(300))
@given(trees(), st.lists(ROWS, min_size=1, max_size=4))
def test_pruning_loses_no_row(tree, rows):
    """Statistics, encoded keys, listed values of the key."""
    bound = bind_predicates([condition_of(tree)], SCHEMA)
    matching = [row for row in rows if truth(tree, row)]
    lower, upper = bound.key_bounds()
    within = bound.within(lower, upper)
    for row in matching:
        key = encode_key([row["h"], row["k"]], [TYPES["h"], TYPES["k"]])
        assert (lower is None or lower <= key) and (upper is None or key < upper)
        assert within.evaluate(batch_of([row])).all()
        for name in KEY:
            values = bound.equality_values(name)
            assert values is None or row[name] in values
    for row in rows:
        key = encode_key([row["h"], row["k"]], [TYPES["h"], TYPES["k"]])
        if (lower is None or lower <= key) and (upper is None or key < upper):
            assert within.evaluate(batch_of([row])).tolist() == [bool(truth(tree, row))]
    if matching:
        assert not bound.is_empty
        assert bound.may_match(lambda name: statistics_of(rows, name))
        assert bound.may_match(lambda name: None)


def test_conditions_on_one_column_become_one_constraint():
    """Equalities become a list, ranges their union; what all branches say prunes."""
    schema = Schema.build([Column(-1, "a", int64, nullable=False), Column(-1, "b", int32)], ["a"])

    def bound(where):
        return bind_predicates(parse_where(where, schema), schema)

    assert bound("a = 1 OR a = 5 OR a IN (7, 9)").equality_values("a") == [1, 5, 7, 9]
    assert bound("a = 1 OR a = 5").key_bounds() == bound("a BETWEEN 1 AND 5").key_bounds()
    assert bound("(a = 1 AND b = 2) OR (a = 5 AND b > 3)").equality_values("a") == [1, 5]
    assert bound("a > 7 OR a IS NOT NULL").columns == [] == bound("a = 1 OR a != 1").columns
    assert bound("b > 7 OR b IS NULL OR b <= 7").columns == []
    assert bound("b > 7 OR b <= 7").columns == ["b"] and not bound("b > 7 OR b <= 7").disjunctions
    assert bound("b > 7 AND NOT b > 7").is_empty and bound("b IN (1) AND b NOT IN (1)").is_empty
    assert bound("a > 5 AND a < 5 OR b > 5 AND b < 5").is_empty
    assert bound("b NOT IN (1, NULL)").is_empty and bound("a IS NULL").is_empty
    branches = bound("a = 1 OR b = 3")
    assert branches.key_bounds() == (None, None) and branches.columns == ["a", "b"]
    ranges = {"a": (10, 20, 0, 5), "b": (0, 9, 0, 5)}
    assert branches.may_match(ranges.get)
    assert not branches.may_match((ranges | {"b": (4, 9, 0, 5)}).get)
    assert not bound("b != 4").may_match({"b": (4, 4, 0, 5)}.get)


@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("kind", ["int64", "double", "string", "decimal(9, 2)"])
def test_long_lists_of_ranges_are_searched(kind, count):
    """Few ranges are compared one by one, many are searched; NULL and NaN stay apart."""
    column_type = parse_type(kind)
    made = {"string": lambda n: f"{n:05}", "double": float}.get(kind, int)
    schema = Schema.build(
        [Column(-1, "k", int64, nullable=False), Column(-1, "v", column_type)], ["k"]
    )
    v = ColumnExpression("v")
    ranges = Or(tuple((v >= made(n)) & (v < made(n + 7)) for n in range(0, 10 * count, 10)))
    points = ~v.in_list([made(n) for n in range(0, 10 * count, 3)])
    numbers = np.random.default_rng(5).integers(-20, 10 * count + 20, 2_000).tolist()
    values = [None if n % 11 == 0 else made(max(n, 0)) for n in numbers]
    batch = pa.record_batch({"v": pa.array(values, column_type.arrow)})
    is_there = np.array([n % 11 != 0 for n in numbers])
    kept = np.array([max(n, 0) for n in numbers])
    in_ranges = is_there & (kept % 10 < 7) & (kept < 10 * count)
    in_points = is_there & ((kept % 3 != 0) | (kept >= 10 * count))
    for where, expected in ((ranges, in_ranges), (points, in_points)):
        assert bind_predicates([where], schema).evaluate(batch).tolist() == expected.tolist()
        found = bind_predicates([~where], schema).evaluate(batch)
        assert found.tolist() == (is_there & ~expected).tolist()


def test_a_float_literal_is_rounded_as_a_cell_is():
    """Python's 0.1 is no 32-bit float; it finds the row that 0.1 was written to."""
    schema = Schema.build([Column(-1, "k", int64, nullable=False), Column(-1, "f", float_)], ["k"])
    batch = pa.record_batch({"f": pa.array([0.1, 0.2, 16777216.0, float("inf")], pa.float32())})
    for where, expected in (
        (ColumnExpression("f") == 0.1, [0]),
        ("f = 0.1", [0]),
        ("f IN (0.1D, 0.2)", [0, 1]),
        ("f > 0.1", [1, 2, 3]),
        ([("f", "<=", 0.1)], [0]),
        ("f != 0.1", [1, 2, 3]),
        (ColumnExpression("f") == 16777217, [2]),
        ("f < 1e300", [0, 1, 2]),
        (ColumnExpression("f") > 10**400, [3]),
    ):
        found = bind_predicates(parse_where(where, schema), schema).evaluate(batch)
        assert np.flatnonzero(found).tolist() == expected, where


def test_operators_make_trees():
    """Nested joins of one kind are one; ~ moves inwards; None is NULL."""
    assert (A == 1) & (B == 2) & (A < 3) == And((A == 1, B == 2, A < 3))
    assert ~((A == 1) | (B.starts_with("x") & (B != None))) == And(  # noqa: E711
        (A != 1, Or((~B.starts_with("x"), B.is_null())))
    )
    assert (A == None) == A.is_null() and (A != None) == A.is_not_null()  # noqa: E711
    assert ~~(A.in_list([1]) | (A >= 3)) == A.in_list([1]) | (A >= 3)
    assert str(~((A == 1) & (B == "x")) & (B > 1)) == "(a != 1 OR b != 'x') AND b > 1"
    assert ((A == 1) | (B == 2)).columns == ("a", "b")
    assert parse_where(And(((A == 1), (B == 2))), SCHEMA) == ((A == 1), (B == 2))


def test_forms_of_tuples():
    """As pyarrow and deltalake have them: a tuple, a list of them, a list of lists."""
    assert parse_where(("a", "==", 1), SCHEMA) == (A == 1,)
    assert parse_where([("a", "not in", [1, 2]), ("b", "!=", None)], SCHEMA) == (
        ~A.in_list([1, 2]),
        B.is_not_null(),
    )
    assert parse_where([[("a", "=", 1), ("b", ">", 2)], [("a", "in", {3})]], SCHEMA) == (
        Or((And((A == 1, B > 2)), And((A.in_list([3]),)))),
    )
    assert parse_where([], SCHEMA) == () == parse_where((), SCHEMA)
    for wrong in (("a", "~", 1), [("a", "=")], [[("a", "=", 1)], ("a", "=", 1)], [None], b"a = 1"):
        with pytest.raises(OptionError):
            parse_where(wrong, SCHEMA)
    with pytest.raises(OptionError, match=r"\('a', 'like', 'x'\) has an unknown operator"):
        parse_where(("a", "like", "x"), SCHEMA)
    with pytest.raises(OptionError, match=r"where: \{'a': 1\} is no predicate"):
        parse_where({"a": 1}, SCHEMA)
    assert len(parse_where(("k = 1", "n = 2", "s = 'x'"), SCHEMA)) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: (A == 1) and (B == 2),
        lambda: (A == 1) or (B == 2),
        lambda: not (A == 1),
        lambda: 1 < A < 5,
        lambda: A == 1 & B == 2,
        lambda: A == 1 | (B == 2),
        lambda: (A == 1) & "b = 2",
        lambda: ~B,
        lambda: (A == 1) & B,
        lambda: bool((A == 1) | (B == 2)),
    ],
)
def test_words_of_python_and_forgotten_parentheses_are_refused(wrong):
    """`and` would drop a half in silence; & binds closer than == does."""
    with pytest.raises(UsageError, match=r"put each comparison in parentheses: \(table\['a'\] > 1"):
        wrong()


def test_predicates_have_operators_for_all_negations():
    """Each operator has one that is true where it is false."""
    for op in ("=", "<", "<=", "in", "is_null", "starts_with"):
        predicate = Predicate("a", op, None if op == "is_null" else ("x",) if op == "in" else "x")
        assert ~predicate != predicate and ~~predicate == predicate


def test_a_long_list_of_keys_is_evaluated_on_the_rows_that_are_left():
    """The constraint that all branches imply leaves a few rows; the answer is that of all rows."""
    numbers = np.random.default_rng(3).integers(0, 100, (2, 5_000))
    batch = pa.record_batch({"a": numbers[0], "b": numbers[1]})
    names = ["a", "b"]
    schema = Schema.build([Column(-1, name, int64, nullable=False) for name in names], names)
    for count in (1, 3, 30, 300):
        wanted = {tuple(pair) for pair in numbers[:, :count].T.tolist()} | {(-1, 5)}
        where = [[("a", "=", a), ("b", "=", b)] for a, b in wanted]
        found = bind_predicates(parse_where(where, schema), schema).evaluate(batch)
        assert found.tolist() == [tuple(pair) in wanted for pair in numbers.T.tolist()]
