"""What a journal stores, as pure data: chunks of messages, events, and the checkpoint they are folded into."""
