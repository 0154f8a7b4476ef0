"""The front is on in every test of Spark; files marked with `BOTH` run with it and without.

The first state is that of a session of `local_session` or `register`, the other that of a session
that does not have the jar. Each feature has a file of BOTH, and test_session_matrix.py has the
matrix of both states, on classic Spark and on Spark Connect.

A test of what older versions of Spark lack says so with the marker `spark_since`, and is skipped
there with its reason: `@pytest.mark.spark_since("4.2", "the clause CHANGES")`. `FRONT` is the
marker of tests that need the front.
"""

from collections.abc import Iterator

import pyspark
import pytest

from kudulite_spark.spark_versions import EXTENSION_VERSIONS
from tests.support.spark.spark_tables import configured

FRONT = pytest.mark.spark_since(EXTENSION_VERSIONS[0], "the JVM extension")
BOTH = pytest.mark.parametrize(
    "front",
    [
        pytest.param(True, id="with the front", marks=FRONT),
        pytest.param(False, id="without", marks=pytest.mark.full),
    ],
    indirect=True,
)


@pytest.fixture(autouse=True)
def _spark_since(request: pytest.FixtureRequest) -> None:
    """Skip a test of something that this version of Spark does not have."""
    for marker in request.node.iter_markers("spark_since"):
        version, subject = marker.args
        if pyspark.__version__ < version:
            pytest.skip(f"{subject} needs Spark {version}, this is {pyspark.__version__}")


@pytest.fixture(autouse=True)
def front(request: pytest.FixtureRequest, _spark_since: None) -> Iterator[bool]:
    """Whether loads of the test use the front."""
    is_on = getattr(request, "param", True)
    if "spark" not in request.fixturenames:
        yield is_on
        return
    spark = request.getfixturevalue("spark")
    with configured(spark, {"spark.kudulite.front": str(is_on).lower()}):
        yield is_on
