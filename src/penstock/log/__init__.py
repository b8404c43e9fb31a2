"""The log as other processes reach it: ranges of streams and events by offset, positions of readers, and writes in one piece."""
