"""The jobs, one in each file: a pure `transform(df) -> df`, and a `start` or `run` that only connects the parts."""
