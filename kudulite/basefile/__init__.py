"""The files of one DiskRowSet that never change: base data (Parquet), key index, bloom filter.

Each is written once through a `Sink`, is known by its `FileRef` afterwards, is opened at its first
use, and is read from many threads. `block_cache` keeps parsed parts of them in memory. Rows are
known here only by rowid, the ordinal in the rowset; timestamps, deltas and deletions belong to the
layers above.
"""
