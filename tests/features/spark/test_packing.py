"""How the tokens of a read are cut and packed into tasks."""

import os

import numpy as np
import pyarrow as pa

from kudulite import ReadRequest
from kudulite_spark.reader import SPLIT_ROWS_MIN, packed


def test_many_rows_in_few_bytes_are_several_tasks(core, monkeypatch):
    """Two for each core, as for data that compresses badly, unless a task had few rows."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    client = core.client()
    for count, least, most in ((5 * SPLIT_ROWS_MIN, 4, 5), (SPLIT_ROWS_MIN, 1, 1)):
        table = client.create_table(f"t{count}", pa.schema([("k", pa.int64())]), primary_key="k")
        table.insert(pa.table({"k": np.arange(count)}))
        table.flush()
        tasks = packed(None, lambda size, table=table: table.tokens(ReadRequest(columns=()), size))
        assert least <= len(tasks) <= most
        whole = packed(1 << 30, lambda size, table=table: table.tokens(ReadRequest(), size))
        assert len(whole) == 1
