"""The rules of the hub's client: no clock, no event loop, no sockets."""
