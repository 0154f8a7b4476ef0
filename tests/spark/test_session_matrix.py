"""{classic Spark, Spark Connect} × {with, without the front} × each way to use the source.

Spark Connect has all cells. Each feature has tests with the front and without on classic Spark
(`BOTH` in conftest.py), so a cell has one of the states there, in turn, but for columns that a
write does not name: their rule differs.
"""

import importlib.util
import json
import subprocess
import sys

import pytest

from tests.spark.conftest import FRONT
from tests.support.spark.processes import connect_environment
from tests.support.spark.session_matrix import CELLS

STATES = [pytest.param("with the front", marks=FRONT), "without"]
CLASSIC = [(cell, place % 2 == 0) for place, cell in enumerate(CELLS)]
CLASSIC += [(cell, not front) for cell, front in CLASSIC if cell == "named_columns"]
MARKS = {True: [FRONT], False: []}


@pytest.mark.parametrize(
    ("cell", "front"),
    [pytest.param(cell, front, marks=MARKS[front]) for cell, front in CLASSIC],
    indirect=["front"],
)
def test_on_classic_spark(spark, tmp_path, front, cell):
    """In the session of the tests, in which the setting turns the front off."""
    CELLS[cell](spark, tmp_path)


@pytest.fixture(scope="module")
def connect(tmp_path_factory) -> dict[str, dict[str, str | None]]:
    """The error of each cell in both states of a session of Spark Connect."""
    if importlib.util.find_spec("grpc") is None:
        pytest.skip("needs grpcio")
    folder = tmp_path_factory.mktemp("connect")
    command = [sys.executable, "-m", "tests.support.spark.session_matrix"]
    run = subprocess.run(
        [*command, str(folder), str(folder / "outcomes")],
        env=connect_environment(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, dict[str, str | None]] = json.loads((folder / "outcomes").read_text())
    return found


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("cell", CELLS)
def test_on_spark_connect(connect, cell, state):
    """In one session, before it is registered and after it."""
    assert connect[state][cell] is None, connect[state][cell]
