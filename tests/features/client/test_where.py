"""`where` with AND, OR and NOT in every way of reading, against an oracle of three-valued logic."""

import pickle
import random

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings

import kudulite
from kudulite import NativeCondition, NativeDisjunction, NativeLimits, Table
from kudulite.kudu.scanner import Scanner
from kudulite.rowset.disk_rowset import DiskRowSet
from tests.support.oracle.condition_model import (
    KEY,
    TYPES,
    VALUES,
    Tree,
    condition_of,
    text_of,
    trees,
    truth,
)
from tests.support.tables.core_tables import CoreTables
from tests.support.tiers import examples


def changed_table(core: CoreTables) -> tuple[Table, list[int]]:
    """A table with several rowsets in four tablets, deltas and rows in memory; and its moments."""
    columns = [
        kudulite.column(name, column_type, nullable=name not in KEY)
        for name, column_type in TYPES.items()
    ]
    partitioning = kudulite.Partitioning().add_hash_partitions(["h"], 2)
    partitioning.set_range_partition_columns(["k"]).add_range_partition_split([5])
    client = core.client()
    table = client.create_table("t", kudulite.schema(columns, KEY), partitioning)
    chosen = random.Random(7)

    def row(h: str, k: int) -> dict:
        return {"h": h, "k": k} | {n: chosen.choice(VALUES[n]) for n in VALUES if n not in KEY}

    keys = [(h, k) for h in VALUES["h"] for k in VALUES["k"]]
    moments = [table.insert([row(*key) for key in chosen.sample(keys, 20)]).timestamp]
    table.upsert([row(*key) for key in chosen.sample(keys, 8)])
    moments.append(table.current_timestamp())
    table.delete_ignore([{"h": h, "k": k} for h, k in chosen.sample(keys, 5)])
    table.flush()
    session = client.new_session()
    for key in chosen.sample(keys, 6):
        session.apply(table.new_upsert(row(*key)))
    session.flush()
    moments.append(table.current_timestamp())
    return table, moments


def same(found: list[dict], expected: list[dict]) -> bool:
    """Rows in any order; NaN equals NaN here."""
    return sorted(map(repr, found)) == sorted(map(repr, expected))


def meets(images: list[dict], tree: Tree) -> bool:
    """The images of a key are returned if one of them matches."""
    return any(truth(tree, image) is True for image in images)


def holds(found: NativeCondition | NativeDisjunction, row: dict) -> bool:
    """A condition of a native plan, as its docstring says."""
    if isinstance(found, NativeDisjunction):
        return any(all(holds(part, row) for part in branch) for branch in found.branches)
    value, kind = row[found.column.name], found.column.type
    if found.is_null or value is None:
        return found.is_null and value is None
    tests = [("in", v) for v in [found.values] if v is not None]
    tests += [("not_in", found.excluded)] if found.excluded else []
    if kind.is_bytes:
        value = value.encode()
        tests = [(op, tuple(text.encode() for text in texts)) for op, texts in tests]
        is_within = found.lower is None or value >= found.lower
        return (
            is_within
            and (found.upper is None or value < found.upper)
            and all((value in texts) == (op == "in") for op, texts in tests)
        )
    tests += [(">=", found.lower)] * (found.lower is not None)
    tests += [("<=", found.upper)] * (found.upper is not None)
    # The oracle of another name: a bound of a float column is a double, and not rounded.
    name = "x" if found.column.name == "f" else found.column.name
    return all(truth(("test", name, op, literal), {name: value}) for op, literal in tests)


@pytest.mark.both
def test_every_read_returns_the_rows_that_match(core: CoreTables):
    """Scans in any order, counts, tokens, changes, engines: now and in the past."""
    table, moments = changed_table(core)
    first, *_ = moments
    wholes = {at: table.scan(at=at, ordered=True).to_pylist() for at in [*moments, None]}
    changes = table.changes(first, images="both").to_arrow().to_pylist()
    kinds = {"insert", "update_preimage", "update_postimage", "delete"}
    assert {change["_change_type"] for change in changes} == kinds
    images: dict[tuple, list[dict]] = {}
    for change in changes:
        images.setdefault((change["h"], change["k"]), []).append(change)
    duck, chosen = duckdb.connect(), random.Random(3)

    @settings(max_examples=examples(50))
    @given(trees())
    def check(tree: Tree) -> None:
        text, condition = text_of(tree), condition_of(tree)
        where = condition if text is None or chosen.random() < 0.5 else text
        at = chosen.choice([*moments, None])
        expected = [row for row in wholes[at] if truth(tree, row) is True]
        scan = table.scan(where=where, at=at, ordered=True)
        assert repr(scan.to_pylist()) == repr(expected), (where, at)
        assert scan.count() == len(expected)
        assert same(table.scan(where=where, at=at).to_pylist(), expected)
        some = table.scan(["s"], where=where, at=at, ordered=True, limit=3).to_pylist()
        assert some == [{"s": row["s"]} for row in expected[:3]]
        tokens = pickle.loads(pickle.dumps(table.scan_tokens(where=where, at=at)))
        read = [row for token in tokens for batch in token.open() for row in batch.to_pylist()]
        assert same(read, expected)
        found = table.changes(first, where=where, images="both").to_arrow().to_pylist()
        assert repr(found) == repr([c for c in changes if meets(images[c["h"], c["k"]], tree)])
        plan = table.native_plan(where=where, at=at, limits=NativeLimits(handed_bytes_max=0))
        assert all(holds(part, row) for row in expected for part in plan.conditions), where
        passed = [row for row in wholes[at] if all(holds(p, row) for p in plan.conditions)]
        assert plan.conditions == () or same(passed, expected)
        if chosen.random() < 0.8:
            return  # both engines get the rows of the scan above
        assert same(scan.to_duckdb(duck).to_arrow_table().to_pylist(), expected)
        assert same(scan.to_polars().collect().to_dicts(), expected)

    check()


def test_tuples_and_text_are_forms_of_where(core: CoreTables):
    """The same rows by text, operators, tuples and lists of lists; through a scanner as well."""
    table, _ = changed_table(core)
    expected = table.scan(where=(table["n"] > 1) | (table["s"] == None)).to_pylist()  # noqa: E711
    assert expected
    for where in (
        "n > 1 OR s IS NULL",
        ["n > 1 OR s IS NULL"],
        [[("n", ">", 1)], [("s", "=", None)]],
        table["n"].is_not_null() & ~(table["n"] <= 1) | ~table["s"].is_not_null(),
    ):
        assert same(table.scan(where=where).to_pylist(), expected), where
        assert table.scan(where=where).count() == len(expected)
    scanner = Scanner(table).add_predicate("n > 1 OR s IS NULL").add_predicate(table["k"] >= 0)
    assert len(scanner.open().read_all_tuples()) == len(expected)
    assert repr(scanner).endswith("where (n > 1 OR s IS NULL) AND k >= 0>")
    with pytest.raises(ValueError, match="table 't': condition: 'n \\+ 1 = 2' is not supported"):
        Scanner(table).add_predicate("n + 1 = 2")


def test_an_or_prunes_tablets(core: CoreTables):
    """By the values that all branches together allow in the key."""
    rows = pa.table({"k": range(400), "v": range(400)})
    table = core.client().create_table(
        "keyed", rows.schema, primary_key="k", hash_partitions=[(["k"], 16)]
    )
    table.insert(rows)
    assert len(table.scan_tokens()) == 16
    for where in ("k = 1 OR k = 5", "(k = 1 AND v = 0) OR (v = 9 AND k = 5)"):
        assert len(table.scan_tokens(where=where)) == 2, where
    assert len(table.scan_tokens(where="k = 1 OR v = 5")) == 16


def test_an_or_over_two_columns_skips_row_groups(core: CoreTables, monkeypatch):
    """Those whose statistics exclude every branch."""
    numbers = pa.array(range(300_000))
    rows = pa.table({"k": numbers, "v": numbers, "w": numbers})
    table = core.client().create_table("wide", rows.schema, primary_key="k")
    table.insert(rows)
    read_images, groups = DiskRowSet.read_images, set()

    def record(self, block, columns, views):
        groups.add(block.row_group)
        return read_images(self, block, columns, views)

    monkeypatch.setattr(DiskRowSet, "read_images", record)
    found = table.scan(["k"], where="v < 10 OR w >= 299990 OR v > 10 AND w < 20").to_arrow()
    assert found.num_rows == 10 + 10 + 9 and groups == {0, 2}
