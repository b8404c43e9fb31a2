"""Sources of messages, one file for each kind of queue."""
