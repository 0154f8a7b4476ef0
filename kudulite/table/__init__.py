"""Catalog: the versions of a table, how they are published, and how a table is partitioned."""
