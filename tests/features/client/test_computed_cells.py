"""update(set=…) with expressions: what each row computes from its own cells."""

import pickle
import threading
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

import kudulite
from kudulite import expr
from kudulite.client.batch_writer import BatchWriter
from tests.support.oracle.expressions import COLUMNS, NOON, OF_NUMBERS, OF_TEXT, ROWS


@pytest.fixture
def table(core):
    table = core.client().create_table("t", pa.schema(list(COLUMNS.items())), primary_key="id")
    table.insert(ROWS)
    return table


def cells(table, name):
    return [row[name] for row in table.scan().to_pylist()]


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    OF_NUMBERS,
)
def test_sql_text_is_computed_from_the_cells_of_each_row(table, column, text, expected):
    table.update(where=(), set={column: text})
    assert cells(table, column) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    OF_TEXT,
)
def test_a_text_column_takes_an_expression_by_expr(table, text, expected):
    table.update(where=(), set={"city": expr(text)})
    assert cells(table, "city") == expected


def test_text_alone_is_a_value_of_a_text_column(table):
    table.update(where=(), set={"city": "upper(city)"})
    assert cells(table, "city") == ["upper(city)"] * 3


def test_columns_have_arithmetic(table):
    computed = 10 - (table["n"] + 1) * 2 % 5
    table.update(where="id < 3", set={"n": computed, "x": -table["x"] / 2, "small": table["id"]})
    assert cells(table, "n") == [10 - 16 % 5, 10 + 2, None]
    assert cells(table, "x") == [-1.25, 1.25, None]
    assert cells(table, "small") == [1, 2, None]
    table.update(where="id = 1", set={"at": table["at"] + timedelta(hours=-1), "city": "x"})
    assert table.get(1)["at"] == NOON - timedelta(hours=1)
    table.update(where="id = 1", set={"price": table["price"] * 2})
    assert table.get(1)["price"] == Decimal("3.00")
    assert pickle.loads(pickle.dumps(computed)).text == computed.text


def test_every_value_is_computed_from_the_row_as_it_was(table):
    table.update(where="id = 1", set={"n": "small", "small": "n"})
    assert (table.get(1)["n"], table.get(1)["small"]) == (100, 7)


@pytest.mark.parametrize(
    ("column", "text", "error", "words"),
    [
        ("n", "n / 2", kudulite.errors.SchemaError, "CAST, ROUND or FLOOR"),
        ("small", "small + 100", kudulite.errors.SchemaError, "not in range"),
        ("n", "n + 9223372036854775807", kudulite.errors.SchemaError, "overflow"),
        ("n", "n * 99999999999999999999", kudulite.errors.SchemaError, "too large"),
        ("n", "n DIV (id - 1)", kudulite.errors.SchemaError, "NULLIF"),
        ("x", "n / 0", kudulite.errors.SchemaError, "divides by zero"),
        ("n", "city + 1", kudulite.errors.OptionError, "|| joins text"),
        ("n", "sum(n)", kudulite.errors.OptionError, "is not supported"),
        ("n", "(SELECT 1)", kudulite.errors.OptionError, "is not supported"),
        ("n", "n +", kudulite.errors.OptionError, "is not SQL"),
        ("n", "n; DROP", kudulite.errors.OptionError, "n; DROP"),
        ("n", "t.n + 1", kudulite.errors.OptionError, "is not supported"),
        ("n", "m + 1", kudulite.errors.ColumnNotFoundError, "columns: id, n"),
        ("n", "rand()", kudulite.errors.OptionError, "is not supported"),
        ("n", "TRY_CAST(city AS INT)", kudulite.errors.OptionError, "is not supported"),
        ("n", "city", kudulite.errors.SchemaError, "Failed to parse"),
        ("at", "at + INTERVAL 1 MONTH", kudulite.errors.OptionError, "WEEK"),
        ("id", "id + 1", kudulite.errors.OptionError, "primary key"),
    ],
)
def test_what_cannot_be_computed_changes_nothing(table, column, text, error, words):
    with pytest.raises(error) as caught:
        table.update(where=(), set={column: text})
    assert words in str(caught.value)
    assert table.scan().to_pylist() == ROWS


def test_a_computed_value_is_no_condition(table):
    for compare in (lambda v: v == 8, lambda v: v > 8, lambda v: v & True, bool):
        with pytest.raises(kudulite.errors.UsageError, match="no condition"):
            compare(table["n"] + 1)


def test_no_update_is_lost_beside_other_writers(table):
    """Four threads count to 200 in the log and in files."""

    def count():
        for _ in range(50):
            table.update(where="id = 1", set={"n": table["n"] + 1})

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    table.flush()
    for thread in threads:
        thread.join()
    assert table.get(1)["n"] == 207


def test_rows_that_change_meanwhile_are_computed_again(core, table, monkeypatch):
    """A large update that another writer changes rows of, between its read and its commit."""
    others = iter([lambda: table.update([{"id": 2, "n": 100}]), lambda: table.delete([{"id": 1}])])
    run = BatchWriter.run

    def run_after_another(self, *given, **options):
        if options.get("operation") == "update" and "read_at" in options:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(BatchWriter, "run", run)
                next(others, lambda: None)()
        return run(self, *given, **options)

    monkeypatch.setattr(BatchWriter, "run", run_after_another)
    table.update(where="id < 3", set={"n": "n + 1"})
    assert cells(table, "n") == [8, 101, None]


def test_a_function_is_called_again_where_its_rows_change(table):
    """Three threads count to 60, each by a function of the row that it has read."""

    def count():
        for _ in range(20):
            table.transform(
                lambda rows: [{"id": row["id"], "n": row["n"] + 1} for row in rows.to_pylist()],
                where="id = 2",
                columns=["id", "n"],
                attempts_max=1_000,
            )

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.get(2)["n"] == 53


def test_a_function_that_loses_each_time_ends_with_an_error(table):
    calls = []

    def slow(rows):
        calls.append(rows.num_rows)
        table.update(where="id = 1", set={"n": "n + 1"})
        return rows

    with pytest.raises(kudulite.errors.ConflictError, match="transform was tried 3 times"):
        table.transform(slow, where="id = 1", attempts_max=3)
    assert calls == [1, 1, 1]
    assert table.get(1)["n"] == 10


def test_an_error_of_the_function_is_raised_as_it_is(table):
    with pytest.raises(ZeroDivisionError):
        table.transform(lambda rows: 1 // 0)
    assert table.scan().to_pylist() == ROWS


def test_a_function_may_return_frames_and_other_operations(table):
    pandas = pytest.importorskip("pandas")
    table.transform(lambda rows: rows.to_pandas().assign(n=5)[["id", "n"]], columns=["id", "n"])
    assert cells(table, "n") == [5, 5, 5]
    table.transform(lambda rows: pandas.DataFrame({"id": [9], "n": [1]}), operation="upsert")
    assert table.get(9)["n"] == 1
    table.transform(lambda rows: rows.select(["id"]), where="id < 9", operation="delete")
    assert cells(table, "id") == [9]


def test_now_is_one_moment_for_all_rows(table):
    before = datetime.now(UTC)
    table.update(where=(), set={"at": "current_timestamp()", "day": "current_date()"})
    moments = set(cells(table, "at"))
    assert len(moments) == 1 and before <= moments.pop() <= datetime.now(UTC)
    assert set(cells(table, "day")) <= {before.date(), datetime.now(UTC).date()}
