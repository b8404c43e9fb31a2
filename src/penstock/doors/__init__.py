"""The protocols that Penstock serves: each door translates, and holds no rules of its own that a broker should hold."""
