"""Where messages come from, one file for each kind of queue."""
