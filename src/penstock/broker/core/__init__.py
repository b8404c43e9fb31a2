"""The rules of a broker, without clock, I/O, randomness or threads: each command takes `now` and returns what changed."""
