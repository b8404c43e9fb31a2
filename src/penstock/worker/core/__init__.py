"""The rules of the worker: the format of a task call, and the outcome of a failed one. No clock, no loop, no threads."""
