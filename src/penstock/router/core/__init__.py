"""The router's rules: no I/O, no clock. The same functions run in the server, in a test and on a Spark executor."""
