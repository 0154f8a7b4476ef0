"""Helpers of the Spark connector's tests."""
