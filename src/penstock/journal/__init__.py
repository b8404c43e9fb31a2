"""The implementations of the interface in `penstock.journal.journal`. All pass the same conformance tests."""
