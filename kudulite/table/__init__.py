"""One table: its open tablets, what is in memory, and how rows are read at a moment."""
