"""The jobs, one a file: a pure `transform(df) -> df`, and a `start` or `run` that only wires."""
