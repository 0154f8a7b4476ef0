"""Deltas: changes of rows of one DiskRowSet, keyed by row id, and how they meet base data."""
