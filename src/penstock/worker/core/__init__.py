"""The rules of the worker: what a task call looks like, and what becomes of one that failed. No clock, no loop, no threads."""
