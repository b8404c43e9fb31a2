"""The rules of the client: no clock, no loop, no sockets."""
