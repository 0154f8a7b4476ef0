"""Tests of kudulite and kudulite_spark; run them with `pytest` from the root."""
