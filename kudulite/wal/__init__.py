"""Write-ahead log of a tablet: the changes of rows that were written one by one.

log            segments: read between positions, appended durably
record_format  frames of records; a record, the changes of one flush: RowChanges or RowList ↔ bytes
row_codec      few rows ↔ bytes, without Arrow
"""
