"""The implementations of the port in `penstock.broker.journal`; each passes the same conformance suite."""
