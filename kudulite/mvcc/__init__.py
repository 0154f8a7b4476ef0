"""Multi-version concurrency: HybridTime timestamps and the clock."""
