"""A server as one of several nodes that share a log in PostgreSQL: one owns the log, the others stand by and relay to it."""
