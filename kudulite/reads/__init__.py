"""Reads: scans, changes, lookups, their pieces for other processes, and files for other engines."""
