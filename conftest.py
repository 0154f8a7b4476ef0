"""Set-up of every test: one Spark session per pytest process, and repeatable random tests."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests.support.scheduling import STARTS_SPARK, FewSparkWorkers, spark_worker_count
from tests.support.tiers import half_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent

# A failure prints the blob that repeats it. No deadline: machines differ too much. Property tests
# are in both tiers: of a hundred examples the quick one draws twenty, the full one the rest.
hypothesis.settings.register_profile("full", deadline=None, print_blob=True, max_examples=80)
hypothesis.settings.register_profile(
    "quick", hypothesis.settings.get_profile("full"), max_examples=20
)

# In runs as short as these, Java's optimising compiler costs more than it gives, and verifying the
# bytecode of Spark's classes takes a quarter of the processor time of a session.
os.environ.setdefault(
    "SPARK_SUBMIT_OPTS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
)

# Processes that tests start, Spark's Python workers among them, import this checkout.
_inherited = os.environ.get("PYTHONPATH")
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([_inherited] if _inherited else [])])

# Each of them would compile the checkout again where bytecode is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    """A run of CI has one half of the full tier; see .ci/run."""
    parser.addoption("--half", type=int, choices=(0, 1), help="run one of two halves of the tests")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FewSparkWorkers | None:
    """The scheduler for --dist=loadfile; other modes are xdist's."""
    if config.getoption("dist") != "loadfile":
        return None
    return FewSparkWorkers(config, log, spark_worker_count(config))


def is_full_tier(config: pytest.Config) -> bool:
    """Whether this run is `pytest -m full`."""
    return bool(config.getoption("markexpr") == "full")


def pytest_configure(config: pytest.Config) -> None:
    """Choose the number of examples of property tests; no garbage arises until all is collected."""
    gc.disable()
    hypothesis.settings.load_profile("full" if is_full_tier(config) else "quick")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the tiers, and put those that start Spark first: they take the longest."""
    for item in items:
        is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if is_full_tier(config) and (is_property or item.get_closest_marker("both")):
            item.add_marker(pytest.mark.full)
        in_folder = item.nodeid.startswith("tests/spark/")
        if in_folder or "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if in_folder and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.full)
    half = config.getoption("half")
    if half is not None:
        others = [item for item in items if half_of(item.nodeid) != half]
        items[:] = [item for item in items if half_of(item.nodeid) == half]
        config.hook.pytest_deselected(items=others)
    items.sort(key=lambda item: not item.nodeid.startswith(STARTS_SPARK))


def pytest_collection_finish() -> None:
    """Take modules and collected tests out of garbage collection, which would walk all of them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Give them back: some libraries complain of objects that are left at the end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The Spark session of this process: local[2], two shuffle partitions, no UI.

    It has the front. A test that changes a setting puts it back.
    """
    # Tests without Spark run where pyspark is not installed.
    from kudulite_spark.session import local_session

    folder = tmp_path_factory.mktemp("spark")
    session = local_session(
        "kudulite tests",
        options={
            "spark.local.dir": str(folder / "local"),
            # The error of a crashed worker has its trace.
            "spark.python.worker.faulthandler.enabled": "true",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
        },
    )
    yield session
    session.stop()
