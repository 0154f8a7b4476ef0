"""The Python of Spark's workers: one that cannot import kudulite is an error with the cure."""

import sys

import pytest

from kudulite.errors import UsageError
from kudulite_spark.session import _check_import


def test_workers_without_the_package_are_reported_with_the_cure(tmp_path):
    """Spark itself would only say that it does not find the format."""
    python = tmp_path / "python3"
    python.write_text(
        "#!/bin/sh\necho Traceback >&2\necho \"No module named 'pyspark'\" >&2\nexit 1\n"
    )
    python.chmod(0o755)
    for found, problem in ((python, "No module named 'pyspark'"), (tmp_path / "none", "No such")):
        with pytest.raises(UsageError, match=problem) as caught:
            _check_import(str(found), "")
        text = str(caught.value)
        assert f"the workers of this Spark session run {found}, which" in text
        assert f"PYSPARK_PYTHON={sys.executable}" in text and "register(spark)" in text
