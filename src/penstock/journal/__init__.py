"""The implementations of the port in `penstock.journal.journal`; each passes the same conformance suite."""
