"""The ways to a broker."""
