"""The HTTP client for outgoing requests: one module for each version of HTTP."""
