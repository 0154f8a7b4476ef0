"""Write-ahead log of a table: the commits whose rows are in no rowset yet.

    log_writer       appends commits to the last segment, durably
    log_reader       commits between two positions of the log
    segment          files of the log, and positions in them
    frame_format     one append with its checksums, in a segment
    commit_format    the records of all tablets that one write changed
    record_format    a record ↔ RowChanges or RowList, the rows of one tablet
    row_codec        few rows ↔ bytes, without Arrow
    tablet_log       reads the logs that each tablet of an older table has

Everything here is about bytes and arrays. `table/present.py` decides which commits are
durable, and `tablet/mem_stores.py` applies their records.
"""
