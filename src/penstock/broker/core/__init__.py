"""The rules of a broker, without clock, I/O, randomness or threads: fed a command and `now`, they return what changed."""
