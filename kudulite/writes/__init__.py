"""Writes: rows through the log, and bulk writes from staging to commit."""
