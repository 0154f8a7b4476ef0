"""Write-ahead log of a tablet: segments, frames, records, and who reads and appends them.

record_format   RowChanges ↔ bytes            format     segment header and frames ↔ bytes
wal_reader      folder, positions → records   wal_writer  one durable frame per append
"""
