"""The files of one DiskRowSet that never change: base data (Parquet), key index, bloom filter.

Each is written once through a `fs.Sink`, is known by its `FileRef` afterwards, and is opened lazily
and read from many threads. `block_cache` keeps parsed parts of them in memory. Rows are known here
only by rowid, the ordinal in the rowset; timestamps, deltas and deletions are the layers' above.
"""
