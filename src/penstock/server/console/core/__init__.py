"""The computations of the console, pure: rates, rows, sentences, groups, and the life of a message."""
