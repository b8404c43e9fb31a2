"""The rules of the hub: fed texts, drained of frames. No I/O, no clock, no randomness."""
