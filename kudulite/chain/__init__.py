"""The chain of versions: manifests, how a table is partitioned, and what its names mean."""
