"""One table: its versions, reads and writes over all tablets, partitions, and maintenance."""
