"""Parts that stand in for those of the engine: a file system that fails, a table in memory."""
