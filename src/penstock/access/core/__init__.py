"""The rules of access. Pure: no file, no clock, no randomness."""
