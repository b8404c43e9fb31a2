"""The server: a broker with every API in front of it, its settings and its logging."""
