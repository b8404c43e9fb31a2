"""The server: a broker with all APIs, its settings and its logging."""
