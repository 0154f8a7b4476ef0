"""The front is on in every test of Spark; files marked with `BOTH` run with it and without.

The first state is that of a session of `local_session` or `register`, the other that of a session
that does not have the jar. Each feature has a file of BOTH, and test_session_matrix.py has the
matrix of both states, on classic Spark and on Spark Connect.
"""

from collections.abc import Iterator

import pytest

from tests.support.spark.spark_tables import configured

BOTH = pytest.mark.parametrize(
    "front",
    [
        pytest.param(True, id="with the front"),
        pytest.param(False, id="without", marks=pytest.mark.full),
    ],
    indirect=True,
)


@pytest.fixture(autouse=True)
def front(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether loads of the test use the front."""
    is_on = getattr(request, "param", True)
    if "spark" not in request.fixturenames:
        yield is_on
        return
    spark = request.getfixturevalue("spark")
    with configured(spark, {"spark.kudulite.front": str(is_on).lower()}):
        yield is_on
