"""Write-ahead log of a tablet: the changes of rows that were written one by one.

    log              segments: read between positions, appended durably
    record_format    frames of records; a record ↔ RowChanges or RowList, the changes of one flush
    row_codec        few rows ↔ bytes, without Arrow

Everything here is about bytes and arrays of one tablet. `table/tablet_memory.py` decides which
records are durable, and `tablet/mem_stores.py` applies them.
"""
