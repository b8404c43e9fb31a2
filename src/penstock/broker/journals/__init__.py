"""Documented import paths. The journals are in `penstock.journal`."""
