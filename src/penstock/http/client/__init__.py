"""How requests leave: one file for each version of HTTP."""
