"""The rules of access, pure: no file, no clock, no randomness."""
