"""The command `penstock`: one module for each command, listed in `main.COMMANDS`."""
