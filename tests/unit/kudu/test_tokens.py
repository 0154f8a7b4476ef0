"""Scan tokens: built, sent, and read by somebody else."""

import pyarrow as pa
import pytest

import kudulite.kudu as kudu
from tests.support.tables.core_tables import CoreTables


@pytest.fixture
def table(core: CoreTables) -> kudu.Table:
    """100 rows (k, v) in two rowsets of each of 4 tablets."""
    schema = pa.schema([("k", pa.int32()), ("v", pa.int64())])
    core.client().create_table("t", schema, primary_key="k", hash_partitions=[(["k"], 4)])
    table = kudu.connect(core.root / "root").table("t")
    for start in (0, 1):
        table.engine.insert([{"k": k, "v": 2 * k} for k in range(start, 100, 2)])
    return table


def test_tokens_together_are_the_scan(table: kudu.Table):
    """With projection, predicates and bounds, all at one moment; the builder may be used again."""
    builder = table.scan_token_builder().set_projected_column_names(["v"]).set_fault_tolerant()
    builder.add_predicates([table["k"] >= 10, table["v"] < 180])
    builder.add_lower_bound({"k": 20}).add_upper_bound((85,))
    builder.set_split_size_bytes(1)
    tokens = builder.build()
    table.engine.delete([{"k": 50}])
    rows = []
    for token in tokens:
        scanner = token.into_kudu_scanner()
        assert scanner.get_projection_schema().names == ["v"]
        part = scanner.open().read_all_tuples()
        assert part == sorted(part)
        rows += part
    assert sorted(rows) == [(2 * k,) for k in range(20, 85)]
    assert len({token._given().timestamp for token in tokens}) == 1
    assert sum(len(t.into_kudu_scanner().read_all_tuples()) for t in builder.build()) == 64


def test_a_token_travels_as_bytes(table: kudu.Table, core: CoreTables):
    """Another client makes a scanner of it."""
    before = table.engine.current_timestamp()
    table.engine.delete([{"k": k} for k in range(50)])
    tokens = table.scan_token_builder().set_snapshot(before).build()
    client = kudu.connect(core.root / "root")
    scanners = [client.deserialize_token_into_scanner(token.serialize()) for token in tokens]
    rows = [row for scanner in scanners for batch in scanner.xbatches() for row in batch]
    assert sorted(rows) == [(k, 2 * k) for k in range(100)]


def test_a_split_size_is_above_0(table: kudu.Table):
    """As a limit is."""
    with pytest.raises(kudu.KuduInvalidArgument, match="split size of 0 bytes is not above 0"):
        table.scan_token_builder().set_split_size_bytes(0)
