"""Storage: durable writes, atomic publication, checksums and locks between processes."""
