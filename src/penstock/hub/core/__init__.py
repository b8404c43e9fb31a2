"""The rules of the hub: texts go in, frames come out. No I/O, no clock, no randomness."""
