"""Benchmarks of Penstock: each module is runnable with ``python -m`` and prints a table."""
