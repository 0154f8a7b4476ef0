"""RowSets: the parts that together hold a tablet's rows, and how they are read as one."""
