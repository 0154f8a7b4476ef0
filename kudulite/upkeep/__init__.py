"""Upkeep: compaction, purge, maintenance, garbage collection, checks and alterations."""
