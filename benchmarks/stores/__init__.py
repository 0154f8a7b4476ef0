"""The stores that `benchmarks/peers.py` compares, their workload, its steps and the report."""
