"""The data of a journal: chunks of messages, events, and the checkpoint that summarizes the events."""
