"""The command `penstock`: one file a command, listed in `main.COMMANDS`."""
