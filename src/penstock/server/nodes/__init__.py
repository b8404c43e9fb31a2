"""A server as one of several nodes that share a log in PostgreSQL: one owns the log, the others are standbys and relay to it."""
