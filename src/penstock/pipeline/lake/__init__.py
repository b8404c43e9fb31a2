"""The lake: Delta tables of everything that the log held, and of what jobs made of it."""
