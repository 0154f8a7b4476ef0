"""Native plans: base files without the excluded rows, and the rest, are the snapshot."""

import pyarrow as pa
import pytest

import kudulite
from kudulite import NativeLimits, NativePlan
from kudulite.errors import ColumnNotFoundError, ConflictError, TimestampError
from kudulite.rowset.disk_rowset import BaseColumns
from kudulite.table.environment import default_environment
from tests.support.tables.readings import native_readings, rows_of_plan
from tests.support.tables.typed_tables import TypedTable, random_table
from tests.support.tiers import tiered


def multiset(rows: list[dict]) -> list[str]:
    """Rows that may hold NaN, in an order, to be compared."""
    return sorted(map(repr, rows))


@tiered(("seed", "steps"), [(0, 4), *((seed, 10) for seed in range(4))], quick=1)
def test_files_without_excluded_rows_and_the_rest_are_the_snapshot(tmp_path, seed, steps):
    """At every moment, whatever the limits leave to whom."""
    made = random_table(tmp_path / "t", seed, steps)
    made.overwrite()
    made.step()
    made.step()
    for moment in [*made.moments, None]:
        expected = multiset(made.table.scan(at=moment).to_pylist())
        for number, found in enumerate(native_readings(made.table, moment)):
            assert multiset(found) == expected, (seed, moment, number)


def test_columns_are_known_by_id(tmp_path):
    """Added columns show their default, renamed ones their values, and a name that came back not
    those of the dropped column."""
    made = random_table(tmp_path / "t", 3, step_count=4)
    made.table.flush()
    made.alter()
    expected = multiset(made.table.scan().to_pylist())
    assert all(multiset(found) == expected for found in native_readings(made.table))
    (file, *_) = made.table.native_plan(limits=NativeLimits(excluded_fraction_max=1)).files
    by_name = {item.column.name: item for item in file.columns}
    assert by_name["added"].stored_name is None
    assert by_name["added"].default == 17
    assert by_name["renamed"].stored_name == "i32"
    assert by_name["i16"].stored_name is None  # the file has one, of another id
    made.table.upsert(made.table.scan(limit=20).to_arrow())
    expected = multiset(made.table.scan().to_pylist())
    assert all(multiset(found) == expected for found in native_readings(made.table))


def test_a_clean_table_is_its_files(tmp_path):
    """No rest where no delta touches a row; rowsets that ended by T are not read."""
    made = TypedTable(tmp_path / "t", 1)
    made.bulk()
    first = made.table.current_timestamp()
    made.overwrite()
    for moment in (first, None):
        plan = made.table.native_plan(at=moment)
        assert plan.files and not plan.tokens and not plan.rows.num_rows
        assert not any(len(file.excluded) for file in plan.files)
        total = sum(file.row_count for file in plan.files)
        assert total == made.table.scan(at=moment).count()
    ended = {file.path for file in made.table.native_plan(at=first).files}
    assert ended.isdisjoint(file.path for file in made.table.native_plan().files)


def test_a_plan_stays_as_it_is_while_the_table_changes(tmp_path):
    """Files, rows and tokens name one version, also when a key has moved elsewhere since."""
    made = random_table(tmp_path / "t", 5)
    expected = multiset(made.table.scan().to_pylist())
    limits = NativeLimits(handed_bytes_max=0)
    plans = [made.table.native_plan(), made.table.native_plan(limits=limits)]
    for _ in range(4):
        made.step()
    made.overwrite()
    assert all(multiset(rows_of_plan(plan).to_pylist()) == expected for plan in plans)


def test_projection_and_predicates(tmp_path):
    """`columns` narrows all kinds; `where` all but the files, which its reader filters."""
    made = random_table(tmp_path / "t", 2)
    where = [made.table["id"] >= 20, made.table["i32"] == -7]
    expected = multiset(made.table.scan(columns=["text", "i32"], where=where).to_pylist())
    for limits in (NativeLimits(), NativeLimits(excluded_rows_max=0, handed_bytes_max=0)):
        plan = made.table.native_plan(columns=["text", "id", "i32"], where=where, limits=limits)
        found = [row for row in rows_of_plan(plan).to_pylist() if row["id"] >= 20]
        found = [row for row in found if row["i32"] == -7]
        assert multiset([{"text": r["text"], "i32": r["i32"]} for r in found]) == expected
    assert made.table.native_plan(where=[made.table["id"] == 1, made.table["id"] == 2]).files == ()
    count = made.table.scan().count()
    plan = made.table.native_plan(columns=[], is_readable=lambda file: False)
    assert plan.rows.num_rows + sum(b.num_rows for t in plan.tokens for b in t.open()) == count
    with pytest.raises(ColumnNotFoundError):
        made.table.native_plan(columns=["nothing"])
    with pytest.raises(TimestampError):
        made.table.native_plan(at="2999-01-01")


def test_tokens_narrow(tmp_path):
    """Columns and predicates that come after planning."""
    made = random_table(tmp_path / "t", 4)
    limits = NativeLimits(excluded_rows_max=0, handed_bytes_max=0, memory_rows_max=0)
    plan = made.table.native_plan(limits=limits, is_readable=lambda file: False)
    where = [made.table["i64"] > 0]
    parts = [b for t in plan.tokens for b in t.narrowed(["id"], where).open()]
    expected = made.table.scan(columns=["id"], where=where).to_arrow()
    assert not plan.files
    rest = [row["id"] for row in plan.rows.to_pylist() if row["i64"] is not None and row["i64"] > 0]
    ids = [value.as_py() for batch in parts for value in batch.column(0)]
    assert sorted(ids + rest) == sorted(expected.column("id").to_pylist())


def test_a_token_of_another_table_is_refused(tmp_path):
    """A table that was created again, and files that are gone, ask for a new plan."""
    made = random_table(tmp_path / "t", 7)
    made.table.compact()
    limits = NativeLimits(excluded_rows_max=0, handed_bytes_max=0, memory_rows_max=0)
    (token, *_) = made.table.native_plan(limits=limits, is_readable=lambda file: False).tokens
    made.overwrite()
    for file in made.table.path.glob("tablet/*/rowset/*/base-*"):
        file.unlink()
    default_environment.cache_clear()  # of a process that has not opened the files yet
    again = kudulite.RowSetToken.from_bytes(token.to_bytes())
    with pytest.raises(ConflictError, match="read the table again"):
        list(again.open())


def test_rows_whose_cells_were_all_set_are_read_without_base_data(tmp_path, monkeypatch):
    """The tokens of upserted rows read DeltaFiles only; those of an update need base data."""
    rows = pa.table({"id": range(5000), "a": range(5000), "b": range(5000)})
    table = kudulite.connect(tmp_path).create_table("t", rows.schema, primary_key="id")
    table.insert(rows)
    changed = rows.slice(1000, 1000).set_column(1, "a", rows["a"].slice(0, 1000))
    write = table.new_bulk_write("upsert")
    write.commit([write.stage(changed.to_batches())])
    table.flush()
    limits = NativeLimits(handed_bytes_max=0)

    def read(plan: NativePlan) -> pa.Table:
        return pa.Table.from_batches(b for t in plan.tokens for b in t.open())

    def refuse(self, block, columns, **_options):
        assert not columns, "base data was read"
        return []

    plan = table.native_plan(columns=["a", "b"], limits=limits)
    assert plan.tokens and plan.files
    expected = changed.select(["a", "b"])
    monkeypatch.setattr("kudulite.rowset.disk_rowset.BaseColumns.read", refuse)
    monkeypatch.setattr("kudulite.rowset.disk_rowset.BaseColumns.gather", refuse)
    assert read(plan).equals(expected)
    with pytest.raises(AssertionError, match="base data was read"):
        read(table.native_plan(columns=["id"], limits=limits))
    monkeypatch.undo()
    found = read(table.native_plan(columns=["id"], limits=limits))
    assert found["id"].equals(changed["id"])


def test_rows_beside_the_files_are_decoded_once(tmp_path, monkeypatch):
    """Also after a write, an alteration and a look at the past; other conditions read anew."""
    rows = pa.table({"id": range(5000), "a": range(5000), "b": range(5000)})
    client = kudulite.connect(tmp_path, background_maintenance=False)
    table = client.create_table("t", rows.schema, primary_key="id")
    table.insert(rows)
    table.update(pa.table({"id": range(0, 5000, 50), "a": range(100)}))
    table.flush()
    moment = table.current_timestamp()
    read_rows = [0]
    gather = BaseColumns.gather

    def counted(self, rowids, *args, **options):
        read_rows[0] += len(rowids)
        return gather(self, rowids, *args, **options)

    monkeypatch.setattr(BaseColumns, "gather", counted)

    def is_decoded(**request) -> bool:
        """Plan, compare the rows with those of a scan; whether base data was read for them."""
        read_rows[0] = 0
        plan = table.native_plan(**request)
        decoded = read_rows[0] > 0
        assert plan.files and not plan.tokens
        if "where" not in request:  # the caller applies it to the files
            found = multiset(rows_of_plan(plan).to_pylist())
            assert found == multiset(table.scan(**request).to_pylist())
        return decoded

    assert [is_decoded(), is_decoded()] == [True, False]
    assert [is_decoded(columns=["b", "id"]), is_decoded(columns=["b", "id"])] == [True, False]
    assert [is_decoded(where="b < 900"), is_decoded(where="b < 900")] == [True, True]
    table.delete([{"id": 50}, {"id": 77}])
    table.flush()
    assert [is_decoded(), is_decoded()] == [True, False]
    assert [is_decoded(at=moment), is_decoded(at=moment)] == [True, False]
    alterer = client.new_table_alterer(table)
    alterer.add_column("c", "int32", default=3)
    alterer.alter_column("b", rename_to="d")
    table = alterer.alter()
    assert [is_decoded(), is_decoded()] == [True, False]
    table.update([{"id": 1, "a": 7}])
    table.flush()
    assert [is_decoded(), is_decoded()] == [True, False]
