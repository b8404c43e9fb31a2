"""The checks of `source_conformance`, and what a driver has to bring."""
