"""The rules of the Pub/Sub API: functions over its messages, with no I/O, no clock and no randomness."""
