"""The log for other processes: ranges of streams and events by offset, positions of readers, and atomic writes."""
