"""The rules of the hub's client: no clock, no loop, no sockets."""
