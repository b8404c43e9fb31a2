"""The message router: from queues through process pools to HTTP endpoints (specification 001)."""
