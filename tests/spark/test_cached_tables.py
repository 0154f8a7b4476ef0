"""A table that Spark has cached is read again after a procedure has changed it."""

import pytest

import kudulite
from tests.spark.conftest import FRONT
from tests.spark.test_named_columns import catalog

pytestmark = FRONT

__all__ = ["catalog"]


@pytest.mark.parametrize("by", ["name", "path"])
def test_a_procedure_refreshes_what_is_cached_of_its_table(spark, catalog, tmp_path, by):
    """The table is named by its name in the catalog or by its path."""
    bounds = '{"columns": ["id"], "bounds": [[null, 10], [10, null]]}'
    spark.sql(
        f"CREATE TABLE {catalog}.p (id BIGINT, PRIMARY KEY (id))"
        f" TBLPROPERTIES ('rangePartitions'='{bounds}')"
    )
    kudulite.open_table(tmp_path / "p").insert([{"id": 1}, {"id": 11}])
    names = [f"{catalog}.p", f"{catalog}.`{tmp_path}/p`"]
    for name in names:
        spark.sql(f"CACHE TABLE {name}")
        assert spark.table(name).count() == 2
    table = "p" if by == "name" else f"{tmp_path}/p"
    spark.sql(f"CALL {catalog}.drop_range_partition(table => '{table}', lower => '10')")
    assert [spark.table(name).count() for name in names] == [1, 1]
    spark.catalog.clearCache()
