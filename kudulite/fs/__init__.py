"""File system: durable writes, atomic publication, checksums and locks between processes."""
