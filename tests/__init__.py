"""The tests, as a package so that helpers are imported by one absolute name."""
