"""Processes of tests with a Spark of their own."""

import os


def environment(**more: str) -> dict[str, str]:
    """The variables of such a process, and `more`."""
    own = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    return {**own, **more}


def connect_environment(**more: str) -> dict[str, str]:
    """The same for one with a local server of Spark Connect.

    The server takes a free port in place of 15002, so that several run side by side.
    """
    return environment(SPARK_TESTING="1", **more)
